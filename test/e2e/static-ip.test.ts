import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { leftOn } from "../../lab/leftovers";
import { openPool } from "../../provider/pool";
import { ask, serve } from "../lab/services";
import { Stack, Workspace } from "./stack";

/** examples/two-services from its first preview to its end, with a second stack on the same address. */
let lab: Lab;
let workspace: Workspace;
let shop: Stack;
let wiki: Stack;

const OUTSIDE = { at: "controller" };
let address: string;

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

test("the first preview shows the very address, for both services, and asks no machine", async () => {
  const steps = await shop.preview();
  const [first, second] = ["shop-front", "blog-front"].map((name) => steps.find((step) => step.name === name)!.inputs);
  address = String(first!.ip);
  expect(address).toMatch(/^10\.254\.200\.(1\d|20)$/);
  expect(second!.ip).toBe(address);
  expect([first!.names, second!.names]).toEqual([["storefront-tcp-80"], ["storefront-tcp-8000"]]);
  expect(Stack.writes(shop.trace())).toEqual({});
});

test("up: both services answer at it, and the shop sees its customers", async () => {
  await shop.mustUp();
  const { address: given, sameAddress, names, services, gateways } = await outputs();
  expect([given, sameAddress]).toEqual([address, address]);
  expect(names).toEqual(["storefront-tcp-80", "storefront-tcp-8000"]);
  for (const [name, host] of [
    ["shop", "r1"],
    ["blog", "r2"],
  ] as const) {
    await lab.container(host, name, { bridge: "kohaku-overlay", address: services[name], gateway: gateways[name] });
    await serve(lab, host, name, "tcp", 8080, name);
  }
  expect(await ask(lab, OUTSIDE, address, 80)).toBe(`shop sees ${lab.controllerAddress}`);
  expect(await ask(lab, OUTSIDE, address, 8000)).toBe("blog sees 10.128.128.254");
  expect(await ask(lab, { at: "r1", inside: "shop" }, address, 8000)).toBe("blog sees 10.128.128.254");
  shop.trace();
  await shop.mustUp("--expect-no-changes");
  expect(Stack.writes(shop.trace())).toEqual({});
});

const wikiProgram = (more: string): string => `
  const front = new overlay.StaticIP("wiki", {
    pool: "public", attach: "training", connection: at("hub"), sharingKey: "storefront", ${more}
  });
  return { address: front.ip, sharedWith: front.sharedWith };
`;

test("another stack: a port that is taken is refused in its preview, with the holder's name", async () => {
  wiki = await workspace.stack("dev", { project: "wiki" });
  wiki.program(wikiProgram(`forwards: [{ port: 80, to: "10.254.1.2", toPort: 9000 }]`));
  const { code, text } = await wiki.pulumi("preview", "--stack", "dev");
  expect(code).not.toBe(0);
  expect(text).toMatch(
    new RegExp(`PORT_CONFLICT: Port tcp/80 on ${address} of pool/public belongs to \\S+::shop-front\\.`),
  );
  wiki.program(
    wikiProgram(`forwards: [{ port: 81, to: "10.254.1.2", toPort: 9000 }], attach: "training/r1"`).replace(
      `attach: "training", `,
      "",
    ),
  );
  expect((await wiki.pulumi("preview", "--stack", "dev")).text).toMatch(
    /SHARING_CONFLICT: .* which has it on training; this one would have it on training\/r1/,
  );
});

test("another stack joins the address with a port of its own", async () => {
  await serve(lab, "r2", "", "tcp", 9000, "wiki");
  wiki.program(wikiProgram(`forwards: [{ port: 81, to: "10.254.1.2", toPort: 9000 }]`));
  await wiki.mustUp();
  expect((await wiki.state()).wiki!.outputs).toMatchObject({
    ip: address,
    sharedWith: [expect.stringContaining("::blog-front"), expect.stringContaining("::shop-front")],
  });
  expect(await ask(lab, OUTSIDE, address, 81)).toBe("wiki sees 10.254.0.1");
});

test("drift: a flushed chain is found, and mended without touching what others have there", async () => {
  await lab.exec("hub", "iptables -t nat -F OVERLAY-DNAT");
  await shop.mustUp("--refresh");
  expect(await ask(lab, OUTSIDE, address, 80)).toBe(`shop sees ${lab.controllerAddress}`);
  expect(await ask(lab, OUTSIDE, address, 81)).not.toContain("wiki");
  await wiki.mustUp("--refresh");
  expect(await ask(lab, OUTSIDE, address, 81)).toBe("wiki sees 10.254.0.1");
});

test("destroy: the address goes with the last of them, and nothing is left", async () => {
  await wiki.destroy();
  expect(await ask(lab, OUTSIDE, address, 81)).toMatch(/refused/);
  expect(await ask(lab, OUTSIDE, address, 8000)).toBe("blog sees 10.128.128.254");
  await shop.destroy();
  for (const { name } of lab.hosts) expect(`${name}: ${await leftOn(lab, name)}`).toBe(`${name}: `);
  const pool = await openPool(workspace.store, { offerTtl: 0, quarantine: 0 });
  expect((await pool.leases("space/default")).filter(({ state }) => state !== "resting")).toEqual([]);
  expect(await pool.fsck()).toEqual([]);
  await pool.end();
});
