import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { LabStack } from "./lab-stack";
import { LabCtl } from "./labctl";

/** `overlayctl verify` on a network that is broken in one place after another. */
let lab: Lab;
let ctl: LabCtl;
let stack: LabStack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  ctl = new LabCtl(lab);
  stack = await LabStack.on(lab, ctl.store);
  await stack.network();
  for (const name of ["r1", "r2", "r3"]) await stack.runner(name);
});
afterAll(async () => {
  await lab?.down();
  ctl?.remove();
});

const repairs: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const repair of repairs.splice(0)) await repair();
});

/** Breaks something for the time of one test. */
async function breakHost(host: string, script: string, repair: string): Promise<void> {
  const { code, stderr } = await lab.exec(host, script);
  if (code !== 0) throw new Error(stderr);
  repairs.push(() => lab.exec(host, repair));
}

const verify = (...args: string[]) => ctl.run(["verify", ...args, "--count", "2", "--json"]);
/** The failing hop by pair of hosts, `r1 → hub`, for the pairs that fail. */
async function findFailures(): Promise<Record<string, unknown>> {
  const { code, json, stderr } = await verify("training");
  const failed = json.filter(({ result }) => result !== "ok");
  expect(`${code} ${stderr}`).toContain(failed.length > 0 ? "1 " : "0 ");
  return Object.fromEntries(failed.map(({ from, to, hop }) => [`${from} → ${to}`, hop]));
}

test("all pairs work: loss, round trip and full-size packets of every pair", async () => {
  const { code, json, stderr } = await verify();
  expect(stderr).toBe("training: 12 of 12 pairs work.\n");
  expect(code).toBe(0);
  expect(json[0]).toEqual({
    from: "hub",
    to: "r1",
    address: "10.128.64.1",
    loss: "0%",
    rtt: expect.stringMatching(/^[\d.]+ ms$/),
    mtu: 1450,
    result: "ok",
  });
});

test("connections come from an export with secrets on standard input, or from options, without a store", async () => {
  const elsewhere = ["--store", "memory:", "--count", "1"];
  const piped = await ctl.run(["verify", "--stack-export", "-", ...elsewhere], stack.exported());
  expect(piped).toMatchObject({ code: 0, stderr: "training: 12 of 12 pairs work.\n" });
  const at = (name: string) => `root@${lab.host(name).address}`;
  const given = await ctl.run(["verify", "training", "--hub", at("hub"), "--runner", `r1=${at("r1")}`, ...elsewhere]);
  expect(given).toMatchObject({ code: 0, stderr: "training: 2 of 2 pairs work.\n" });
  const hidden = stack.exported().replaceAll("plaintext", "ciphertext");
  const refused = await ctl.run(["verify", "--stack-export", "-"], hidden);
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining("--show-secrets") });
});

test("a device that is down is named, with its host", async () => {
  await breakHost("r2", "ip link set vxkr2 down", "ip link set vxkr2 up");
  const hops = await findFailures();
  expect(Object.keys(hops)).toHaveLength(6);
  expect(new Set(Object.values(hops)).size).toBe(1);
  expect(hops["r1 → r2"]).toMatch(/^r2 differs: link vxkr2: state is down, should be up/);
});

test("a route of another program inside the range is drift and is named, in main or a table before it; it stays", async () => {
  const away = "10.128.128.0/18 via 10.254.9.9 dev eth0";
  const rule = "from all lookup 77 priority 200";
  await breakHost("r1", `ip route add ${away}`, `ip route del ${away}`);
  await breakHost(
    "r3",
    `ip route add ${away} table 77; ip rule add ${rule}`,
    `ip rule del ${rule}; ip route flush table 77`,
  );
  const named = (table = "") =>
    `foreign route '${away}${table}' takes packets of 10.128.0.0/12 away from the overlay; it is never removed by us: remove it with \`ip route del ${away}${table}\``;
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual([`${lab.host("r1").address}: ${named()}`]);
  expect(await stack.drift("RunnerSubnet", "r3")).toEqual([`${lab.host("r3").address}: ${named(" table 77")}`]);
  expect(await stack.drift("RunnerSubnet", "r2")).toEqual([
    expect.stringContaining("packets from the runner to other runners (10.128.192.1, 10.128.64.1)"),
  ]);
  const hops = await findFailures();
  expect(hops["r1 → r2"]).toBe(`r1 differs: ${named()}`);
  expect(hops["r2 → r3"]).toBe(`r3 differs: ${named(" table 77")}`);
  await expect(stack.runner("r1", { mtu: 1400 })).rejects.toThrow(
    `ROUTE_OVERLAP: ${lab.host("r1").address}: The route '${away}' of another program`,
  );
  expect((await lab.exec("r1", "ip route show 10.128.128.0/18")).stdout.trim()).toBe(away);
});

test("a refusal by one host is reported before another one is changed, and refresh shows that up will refuse", async () => {
  const theirs = "ip link add theirs type vxlan id 102 dstport 4789 remote 10.254.9.9";
  await breakHost("r2", `ip link del vxkr2 && ${theirs}`, "ip link del theirs");
  const text = `foreign device theirs (vxlan, VNI 102, port 4789, remote 10.254.9.9, MAC `;
  const drift = (await stack.drift("RunnerSubnet", "r2")) as string[];
  expect(drift[0]).toContain(`${lab.host("r2").address}: ${text}`);
  expect(drift[0]).toContain("up will refuse with DEVICE_FOREIGN until it is removed (`ip link del theirs`)");
  stack.steps();
  await expect(stack.runner("r2", { mtu: 1400 })).rejects.toThrow(
    `DEVICE_FOREIGN: ${lab.host("r2").address}: The device theirs (vxlan, VNI 102`,
  );
  expect(stack.steps()).toEqual({ hub: 0, r2: 0 });
  for (const repair of repairs.splice(0)) await repair();
  await stack.runner("r2");
  expect(await stack.drift("RunnerSubnet", "r2")).toEqual([]);
});

test("a firewall that drops VXLAN is distinguished from an underlay that is down", async () => {
  const address = lab.host("r3").address;
  const drop = `PREROUTING -s ${address}/32 -p udp -m udp --dport 4789 -m length --length 20:65535 -j DROP`;
  await breakHost("hub", `iptables -t mangle -I ${drop}`, `iptables -t mangle -D ${drop}`);
  expect((await findFailures())["r1 → r3"]).toMatch(/^hub to r3: UDP port 4789 does not pass, /);
  for (const repair of repairs.splice(0)) await repair();
  await breakHost("hub", `ip route add unreachable ${address}`, `ip route del unreachable ${address}`);
  const hops = await findFailures();
  expect(hops["r1 → r3"]).toBe(`the underlay: ${address} (r3) does not answer hub`);
  expect(hops["r1 → r2"]).toBeUndefined();
});

test("packets that are too large, and a hub that does not forward", async () => {
  const drop = "OUTPUT -p udp --dport 4789 -m length --length 1450: -j DROP";
  await breakHost("r1", `iptables -I ${drop}`, `iptables -D ${drop}`);
  expect((await findFailures())["r1 → hub"]).toBe("r1 to hub: packets of 1450 bytes are too large for the underlay");
  for (const repair of repairs.splice(0)) await repair();
  const between = "FORWARD -s 10.128.64.0/18 -d 10.128.128.0/18 -j DROP";
  await breakHost("hub", `iptables -t mangle -I ${between}`, `iptables -t mangle -D ${between}`);
  expect(await findFailures()).toEqual({
    "r1 → r2": "hub does not forward packets: look for a firewall there",
    "r2 → r1": "hub does not forward packets: look for a firewall there",
  });
});

test("a host that SSH does not reach is named, and the others are tried", async () => {
  await lab.stop("r3");
  const { code, json, stderr } = await verify("training");
  await lab.start("r3");
  expect(code).toBe(1);
  expect(stderr).toMatch(/^r3: SSH_UNREACHABLE: .+\.\n/);
  const failed = json.filter(({ result }) => result !== "ok");
  expect(Object.fromEntries(failed.map(({ from, to, hop }) => [`${from} → ${to}`, hop]))).toEqual(
    Object.fromEntries(
      ["hub → r3", "r1 → r3", "r2 → r3", "r3 → hub", "r3 → r1", "r3 → r2"].map((way) => [
        way,
        "r3 could not be asked: SSH_UNREACHABLE",
      ]),
    ),
  );
});
