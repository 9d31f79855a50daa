import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import type { Item } from "../../provider/network/model/items";
import type { Answer, Request } from "./apply-once";

/** Changes that affect SSH, on a host that is reached only by real SSH. */
let lab: Lab;

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
});

afterAll(async () => {
  await lab?.down();
});

beforeEach(() => lab.rebuild("hub"));

const tsx = join(__dirname, "../../node_modules/tsx/dist/cli.mjs");

function client(items: Item[], revertAfter: number): [string, string[]] {
  const connection = { host: lab.host("hub").address, privateKeyPath: lab.privateKeyPath };
  const request: Request = { connection, knownHosts: lab.knownHosts, items, revertAfter };
  return [process.execPath, [tsx, join(__dirname, "apply-once.ts"), JSON.stringify(request)]];
}

async function apply(items: Item[], revertAfter = 8): Promise<Answer> {
  const { stdout, stderr } = await lab.controller(...client(items, revertAfter));
  if (stdout === "") throw new Error(stderr);
  return JSON.parse(stdout) as Answer;
}

const sh = async (script: string): Promise<string> => (await lab.exec("hub", script)).stdout.trim();
const answers = async (): Promise<boolean> =>
  (await lab.controller("ssh", ["-F", lab.sshConfig, "-o", "ConnectTimeout=2", "hub", "true"])).code === 0;
const network = () =>
  sh("ip -o addr show scope global; ip route; iptables-save | grep '^-A'; ls /run/pulumi-overlay | grep revert");

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await holds()); tries++) {
    if (tries > 100) throw new Error(`never: ${what}`);
    await sleep(200);
  }
}

const timers = (): Promise<string> => sh("ls /run/pulumi-overlay | grep -c revert; ps ax | grep -c '[o]verlay/revert'");
const noTimerIsLeft = () => until("no timer is left", async () => (await timers()) === "0\n0");

const dnat = (target: string): Item[] => {
  const place = { family: 4 as const, table: "nat" as const, chain: "OVERLAY-DNAT" };
  const rule = `-d ${lab.host("hub").address}/32 -p tcp -m tcp --dport 22 -j DNAT --to-destination ${target}`;
  return [
    { kind: "chain", ...place },
    { kind: "rule", ...place, rule },
    { kind: "jump", ...place, from: "PREROUTING" },
  ];
};
/** An address on a device of its own. */
const addressed = (address: string): Item[] => [
  { kind: "link", name: "ov-extra", type: "anchor", mac: "02:00:00:00:00:99" },
  { kind: "address", dev: "ov-extra", address },
];

test.each<[string, () => Item[]]>([
  ["every packet to us is lost", () => addressed(`${lab.controllerAddress}/32`)],
  ["only new connections are redirected", () => dnat("10.254.77.77:22")],
])("a change by which %s is reverted by the host, and reported", async (_, items) => {
  const before = await network();
  const { error } = await apply(items());
  expect(error).toMatch(
    /^SSH_CUT: 10\.254\.0\.1: after a change that affects SSH \(add (address|rule) .* The host reverts the change 8 s after/,
  );
  await until("the change is undone", async () => (await network()) === before);
  expect(await answers()).toBe(true);
  await noTimerIsLeft();
  // An unconfirmed change is not restored at boot, either.
  expect(await sh("ls /var/lib/overlay/training; ls /var/lib/overlay/boot.sh")).toBe("u.json");
  await apply([]);
  expect(await network()).toBe(before);
  expect(await sh("ls -d /var/lib/overlay")).toBe("");
});

test.each<[string, () => Item[]]>([
  // Its range is the controller's, and the kernel still uses the older route.
  ["an address", () => addressed("10.254.200.200/16")],
  ["a forward", () => dnat(`${lab.host("hub").address}:22`)],
])("%s that does not affect SSH stays, and leaves no timer", async (_, items) => {
  expect(await apply(items(), 60)).toEqual({ steps: items().length + 2, connections: 2 });
  await noTimerIsLeft();
  expect(await answers()).toBe(true);
  expect(await sh("ls /var/lib/overlay/training /var/lib/overlay/boot.sh | grep -c sh$")).toBe("2");
  expect(await apply(items(), 60)).toEqual({ steps: 0, connections: 1 });
});

test("an ordinary change needs no second connection", async () => {
  const elsewhere: Item = { kind: "route", family: 4, dst: "10.128.0.0/12", metric: 4096 };
  expect(await apply([elsewhere])).toEqual({ steps: 3, connections: 1 });
  expect(await timers()).toBe("0\n0");
});

test("if the client is killed while it waits, the timer on the host reverts the change", async () => {
  const before = await network();
  const child = lab.spawnInController(...client(dnat("10.254.77.77:22"), 8));
  await until("the change is made", async () => (await network()).includes("10.254.77.77"));
  child.kill("SIGKILL");
  await until("the change is undone", async () => (await network()) === before);
  await noTimerIsLeft();
});

test("a change that was never confirmed is reverted by the next conversation", async () => {
  await lab.exec(
    "hub",
    "mkdir -pm 700 /run/pulumi-overlay; echo 'ip route del 10.99.0.0/16' >/run/pulumi-overlay/revert-x.sh; ip route add 10.99.0.0/16 dev eth0",
  );
  await apply([{ kind: "route", family: 4, dst: "10.128.0.0/12", metric: 4096 }]);
  expect(await sh("ip route show 10.99.0.0/16; ls /run/pulumi-overlay | grep revert")).toBe("");
});
