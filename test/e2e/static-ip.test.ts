import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { openIpam } from "../../provider/ipam";
import { ask, serve } from "../lab/services";
import { Stack, Workspace } from "./stack";

/** examples/two-services from its first preview to destroy, with a second stack on the same address. */
let lab: Lab;
let workspace: Workspace;
let shop: Stack;
let wiki: Stack;

const OUTSIDE = { at: "controller" };
let address: string;
let gateways: Outputs["gateways"];

interface Outputs {
  address: string;
  sameAddress: string;
  names: string[];
  services: Record<"shop" | "blog", string>;
  gateways: Record<"shop" | "blog", string>;
}
const outputs = async (): Promise<Outputs> =>
  JSON.parse(await shop.must("stack", "output", "--json", "--stack", "dev")) as Outputs;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  workspace = new Workspace(lab);
  shop = await workspace.example("two-services", ["r1", "r2"], {
    config: { addresses: "10.254.200.10-10.254.200.20" },
  });
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

test("the first preview shows the address of both services, and contacts no host", async () => {
  const steps = await shop.preview();
  const [first, second] = ["shop-front", "blog-front"].map((name) => steps.find((step) => step.name === name)!.inputs);
  address = String(first!.ip);
  expect(address).toMatch(/^10\.254\.200\.(1\d|20)$/);
  expect(second!.ip).toBe(address);
  expect([first!.names, second!.names]).toEqual([["storefront-tcp-80"], ["storefront-tcp-8000"]]);
  expect(Stack.writes(shop.trace())).toEqual({});
});

test("up: both services answer at it, and the shop sees its clients' addresses", async () => {
  await shop.mustUp();
  const { address: given, sameAddress, names, services, ...rest } = await outputs();
  gateways = rest.gateways;
  expect([given, sameAddress]).toEqual([address, address]);
  expect(names).toEqual(["storefront-tcp-80", "storefront-tcp-8000"]);
  for (const [name, host] of [
    ["shop", "r1"],
    ["blog", "r2"],
  ] as const) {
    await lab.container(host, name, { bridge: "overlay-br", address: services[name], gateway: gateways[name] });
    await serve(lab, host, name, "tcp", 8080, name);
  }
  expect(await ask(lab, OUTSIDE, address, 80)).toBe(`shop sees ${lab.controllerAddress}`);
  expect(await ask(lab, OUTSIDE, address, 8000)).toBe(`blog sees ${inBlogs(254)}`);
  expect(await ask(lab, { at: "r1", inside: "shop" }, address, 8000)).toBe(`blog sees ${inBlogs(254)}`);
  shop.trace();
  await shop.mustUp("--expect-no-changes");
  expect(Stack.writes(shop.trace())).toEqual({});
});

/** The wiki is at a reservation of this stack; `at` decides which address. */
const wikiProgram = (port: number, last: number, attach = "training"): string => `
  const place = new overlay.IPReservation("wiki", { runner: "training/r2", ip: "${inBlogs(last)}" });
  new overlay.StaticIP("front", {
    pool: "public", attach: "${attach}", connection: at("hub"), sharingKey: "storefront",
    forwards: [{ port: ${port}, to: place.ip, toPort: 9000 }],
  });
`;

/** An address in the subnet of the blog's runner. */
const inBlogs = (last: number): string => gateways.blog.replace(/\.1$/, `.${last}`);

test("another stack: preview refuses a taken port, with the holder's name", async () => {
  wiki = await workspace.stack("dev", { project: "wiki" });
  wiki.program(wikiProgram(80, 50));
  const { code, text } = await wiki.pulumi("preview", "--stack", "dev");
  expect(code).not.toBe(0);
  expect(text).toMatch(
    new RegExp(`PORT_CONFLICT: Port tcp/80 on ${address} of IPPool public belongs to \\S+::shop-front\\.`),
  );
  wiki.program(wikiProgram(81, 50, "training/r1"));
  expect((await wiki.pulumi("preview", "--stack", "dev")).text).toMatch(
    /SHARING_CONFLICT: .* which has it on training; this one would have it on training\/r1/,
  );
});

test("another stack shares the address with a port of its own", async () => {
  for (const [name, last] of [
    ["old", 50],
    ["new", 60],
  ] as const) {
    const place = { bridge: "overlay-br", address: `${inBlogs(last)}/18`, gateway: gateways.blog };
    await lab.container("r2", name, place);
    await serve(lab, "r2", name, "tcp", 9000, name);
  }
  wiki.program(wikiProgram(81, 50));
  await wiki.mustUp();
  expect((await wiki.state()).front!.outputs).toMatchObject({
    ip: address,
    sharedWith: [expect.stringContaining("::blog-front"), expect.stringContaining("::shop-front")],
  });
  expect(await ask(lab, OUTSIDE, address, 81)).toBe(`old sees ${inBlogs(254)}`);
});

/** Sends requests until it is stopped; prints how many failed. */
const REQUESTS = `
import socket, sys, threading
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
lost = sent = 0
while not stop.wait(0.05):
    sent += 1
    try:
        s = socket.create_connection((sys.argv[1], 81), 1); s.recv(99); s.close()
    except OSError:
        lost += 1
print(f"{lost} of {sent} requests lost")
`;

const leasesOnR2 = async (): Promise<number> => {
  const pool = await openIpam(workspace.store, { offerTtl: 0, quarantine: 0 });
  const wikis = (await pool.leases("runner/training/r2")).filter(
    ({ owner, state }) => owner.endsWith("::wiki") && state === "reserved",
  );
  await pool.end();
  return wikis.length;
};

test("its reservation moves: the old target answers until the new one does; a failure in the middle keeps both", async () => {
  wiki.program(wikiProgram(81, 60));
  const stub = "/usr/local/sbin/iptables-restore";
  await lab.exec("hub", `printf '#!/bin/sh\\nexit 1\\n' >${stub}; chmod +x ${stub}`);
  const failed = await wiki.up();
  expect(failed.text).toMatch(/HOST_COMMAND_FAILED: 10\.254\.0\.1/);
  expect(await ask(lab, OUTSIDE, address, 81)).toBe(`old sees ${inBlogs(254)}`);
  expect(await leasesOnR2()).toBe(2);
  await lab.exec("hub", `rm ${stub}`);

  const requests = lab.spawnInController("/usr/bin/python3", ["-c", REQUESTS, address], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const said = new Promise<string>((resolve) => requests.stdout!.setEncoding("utf8").once("data", resolve));
  await wiki.mustUp();
  requests.stdin!.end();
  const result = await said;
  console.log(`the reservation behind a forward moved amid requests: ${result.trim()}`);
  expect(result).toMatch(/^0 of \d+ requests lost/);
  expect(await ask(lab, OUTSIDE, address, 81)).toBe(`new sees ${inBlogs(254)}`);
  expect(await leasesOnR2()).toBe(1);
});

test("drift: a forward that was removed by hand is found and repaired, and forwards of other stacks are not changed", async () => {
  const rule = `-d ${address}/32 -p tcp -m tcp --dport 81 -j DNAT --to-destination ${inBlogs(60)}:9000`;
  const { code, stderr } = await lab.exec("hub", `iptables -t nat -D OVERLAY-DNAT ${rule}`);
  expect(`${code} ${stderr}`).toBe("0 ");
  expect(await ask(lab, OUTSIDE, address, 81)).toMatch(/refused/);
  wiki.trace();
  await wiki.mustUp("--refresh");
  expect(Stack.writes(wiki.trace())).toEqual({ [lab.host("hub").address]: 1 });
  expect(await ask(lab, OUTSIDE, address, 81)).toBe(`new sees ${inBlogs(254)}`);
  expect(await ask(lab, OUTSIDE, address, 80)).toBe(`shop sees ${lab.controllerAddress}`);
});

test("destroy: the address is removed with the last resource, and nothing is left", async () => {
  await wiki.destroy();
  expect(await ask(lab, OUTSIDE, address, 81)).toMatch(/refused/);
  expect(await ask(lab, OUTSIDE, address, 8000)).toBe(`blog sees ${inBlogs(254)}`);
  await shop.destroy();
  for (const { name } of lab.hosts) expect(`${name}: ${await findLeftovers(lab, name)}`).toBe(`${name}: `);
  const pool = await openIpam(workspace.store, { offerTtl: 0, quarantine: 0 });
  expect((await pool.leases("space/default")).filter(({ state }) => state !== "quarantined")).toEqual([]);
  expect(await pool.admin.fsck()).toEqual([]);
  await pool.end();
});
