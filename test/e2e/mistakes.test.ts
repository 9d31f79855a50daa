import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Editor } from "../unit/editor";
import { Stack, Workspace } from "./stack";

/** Typical mistakes, each in a program that is right otherwise: where each is found, and with which code. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;
const editor = new Editor();

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

interface Mistake {
  /** The program: its network and runners come first, unless it has its own. */
  code: string;
  /** Before `code`. */
  base?: "network" | "runner" | "pool";
  env?: Record<string, string>;
}

const BASE = {
  network: `const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });`,
  runner: `const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    const runner = new overlay.RunnerSubnet("r1", { network, connection: at("r1"), runnerId: 1 });`,
  pool: `const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    const pool = new overlay.IPPool("public", { ranges: ["198.51.100.0/24"], type: "loadBalancer" });`,
};

const hub = "hubConnection: at('hub')";
const network = (inputs: string): Mistake => ({ code: `new overlay.OverlayNetwork("training", { ${inputs} });` });
const runner = (inputs: string): Mistake => ({
  base: "network",
  code: `new overlay.RunnerSubnet("r1", { ${inputs} });`,
});
const second = (inputs: string): Mistake => ({
  base: "runner",
  code: `new overlay.RunnerSubnet("r2", { ${inputs} });`,
});
const pool = (inputs: string): Mistake => ({ code: `new overlay.IPPool("web", { ${inputs} });` });
const address = (inputs: string): Mistake => ({
  base: "runner",
  code: `new overlay.IPReservation("web", { ${inputs} });`,
});
const front = (inputs: string): Mistake => ({
  base: "pool",
  code: `new overlay.StaticIP("front", { pool, attach: network, ${inputs} });`,
});
const setting = (env: Record<string, string>): Mistake => ({ ...network(hub), env });

/** Where it is found: `tsc` and preview, preview, or up; with the code of the error. */
type Found = `tsc, preview ${string}` | `preview ${string}` | `up ${string}`;

const MISTAKES: [name: string, mistake: Mistake, found: Found][] = [
  ["a misspelt input that is required", network("hubConection: at('hub')"), "tsc, preview INPUT_INVALID"],
  ["a misspelt input that is optional", network(`${hub}, subnet: "10.0.0.0/8/8/16"`), "tsc, preview INPUT_INVALID"],
  ["a misspelt input in an object", network(`${hub}, docker: { enable: "off" }`), "tsc, preview INPUT_INVALID"],
  ["a misspelt part of a connection", network(`hubConnection: { hostname: "h" }`), "tsc, preview INPUT_INVALID"],
  ["a port as text", network(`hubConnection: { host: "h", port: "22" }`), "tsc, preview INPUT_INVALID"],
  ["no connection", network(""), "tsc, preview INPUT_INVALID"],
  ["no network", runner("connection: at('r1')"), "tsc, preview INPUT_INVALID"],
  ["an MTU as text", network(`${hub}, mtu: "1400"`), "tsc, preview INPUT_INVALID"],
  ["an MTU that is a flag", network(`${hub}, mtu: true`), "tsc, preview INPUT_INVALID"],
  ["an MTU that is too small", network(`${hub}, mtu: 100`), "preview INPUT_INVALID"],
  [
    "an MTU that is too large for the underlay",
    {
      code: `const network = new overlay.OverlayNetwork("training", { ${hub}, mtu: 9000 });
        new overlay.RunnerSubnet("r1", { network, connection: at("r1") });`,
    },
    "up MTU_TOO_LARGE",
  ],
  ["a UDP port that does not exist", network(`${hub}, vxlanPort: 70000`), "preview INPUT_INVALID"],
  ["a negative VNI", network(`${hub}, vniBase: -1`), "preview INPUT_INVALID"],
  ["a CIDR as a layout", network(`${hub}, subnets: "10.128.0.0/12"`), "preview SUBNET_FORMAT"],
  ["a layout with too many bits", network(`${hub}, subnets: "10.128.0.0/12/6/15"`), "preview SUBNET_BITS"],
  ["a layout with host bits", network(`${hub}, subnets: "10.128.0.1/12/6/14"`), "preview SUBNET_NOT_ALIGNED"],
  ["a layout on loopback", network(`${hub}, subnets: "127.0.0.0/8/8/16"`), "preview SUBNET_RANGE"],
  ["a bridge with a long name", network(`${hub}, bridgeName: "overlay-bridge-of-team"`), "preview INPUT_INVALID"],
  ["a name with a slash", network(`${hub}, networkName: "team/training"`), "preview INPUT_INVALID"],
  ["a value that is no choice", network(`${hub}, docker: { enabled: "yes" }`), "tsc, preview INPUT_INVALID"],
  ["ports in the wrong form", network(`${hub}, hostAccess: ["22/tcp"]`), "preview INPUT_INVALID"],
  [
    "two networks with one range",
    { base: "network", code: `new overlay.OverlayNetwork("n2", { hubConnection: at("r2") });` },
    "preview POOL_OVERLAP",
  ],
  [
    "two networks with one name",
    {
      base: "network",
      code: `new overlay.OverlayNetwork("n2", { ${hub}, networkName: "training", subnets: "10.64.0.0/12/6/14" });`,
    },
    "preview NETWORK_EXISTS",
  ],
  [
    "two networks with the same devices on one hub",
    { base: "network", code: `new overlay.OverlayNetwork("n2", { ${hub}, subnets: "10.64.0.0/12/6/14" });` },
    "preview DEVICE_FOREIGN",
  ],
  ["one host twice", second("network, connection: at('r1')"), "preview DEVICE_FOREIGN"],
  ["the hub as a runner", second("network, connection: at('hub')"), "preview INPUT_INVALID"],
  ["one name twice", second("network, connection: at('r2'), runnerName: 'r1'"), "preview RUNNER_NAME_TAKEN"],
  ["one id twice", second("network, connection: at('r2'), runnerId: 1"), "preview RUNNER_ID_TAKEN"],
  ["an id that is too large", second("network, connection: at('r2'), runnerId: 64"), "preview INPUT_INVALID"],
  [
    "a network that does not exist",
    runner(`network: "trainng", ${hub}, connection: at("r1")`),
    "preview POOL_NOT_FOUND",
  ],
  ["a pool with a bad CIDR", pool(`ranges: ["198.51.100.0/33"]`), "preview INPUT_INVALID"],
  ["a pool with host bits", pool(`ranges: ["198.51.100.7/24"]`), "preview INPUT_INVALID"],
  ["a range from high to low", pool(`ranges: ["198.51.100.20-198.51.100.10"]`), "preview INPUT_INVALID"],
  ["a type in the wrong case", pool(`ranges: ["198.51.100.0/24"], type: "loadbalancer"`), "tsc, preview INPUT_INVALID"],
  [
    "two pools that overlap",
    { base: "pool", code: `new overlay.IPPool("web", { ranges: ["198.51.100.128/25"] });` },
    "preview POOL_OVERLAP",
  ],
  ["an address from nowhere", address(""), "tsc, preview INPUT_INVALID"],
  ["an address from two places", address(`runner, network`), "tsc, preview INPUT_INVALID"],
  ["an address outside of the subnet", address(`runner, ip: "10.9.9.9"`), "preview IP_OUTSIDE_POOL"],
  ["the address of the gateway", address(`runner, ip: "10.128.64.1"`), "preview IP_OUTSIDE_POOL"],
  ["a time as text", address(`runner, ttl: "300"`), "tsc, preview INPUT_INVALID"],
  ["a forward to a name", front(`forwards: [{ port: 80, to: "web" }]`), "preview INPUT_INVALID"],
  [
    "a port that is forwarded twice",
    front(`forwards: [{ port: 80, to: "10.128.64.9" }, { port: 80, to: "10.128.64.9" }]`),
    "preview INPUT_INVALID",
  ],
  [
    "a protocol in the wrong case",
    front(`forwards: [{ protocol: "TCP", port: 80, to: "10.128.64.9" }]`),
    "tsc, preview INPUT_INVALID",
  ],
  [
    "a key file that does not exist",
    network(`hubConnection: { host: "10.254.0.1", privateKeyPath: "/nowhere/key" }`),
    "preview SSH_AUTH",
  ],
  [
    "a key that is cut off",
    network(`hubConnection: { host: "10.254.0.1", privateKey: "-----BEGIN OPENSSH PRIVATE KEY-----" }`),
    "preview SSH_AUTH",
  ],
  ["a setting that is no number", setting({ OVERLAY_OFFER_TTL: "soon" }), "preview SETTING_INVALID"],
];

const DECLARED = `declare const at: (host: string) => { host: string; user: string; privateKey: pulumi.Output<string> };`;

const CODE = /\b([A-Z]{2,}(?:_[A-Z]+)+): /;

/** One try on a store of its own. */
async function find({ base, code, env = {} }: Mistake, i: number): Promise<string> {
  const body = `${base ? BASE[base] : ""}\n${code}`;
  const isTyped = editor.errors(`${DECLARED}\n${body}`).length > 0;
  stack.program(body);
  const own = { ...stack.env, OVERLAY_STORE: `sqlite:${join(workspace.folder, `mistake${i}.db`)}`, ...env };
  const run = (...args: string[]) =>
    workspace.run("pulumi", ["--non-interactive", ...args, "--stack", "dev", "--color", "never"], {
      cwd: stack.folder,
      env: own,
    });
  const preview = await run("preview");
  const typed = isTyped ? "tsc, " : "";
  if (preview.code !== 0) return `${typed}preview ${CODE.exec(preview.stdout + preview.stderr)?.[1]}`;
  stack.trace();
  const up = await run("up", "--yes", "--skip-preview");
  const changed = Object.entries(Stack.writes(stack.trace())).filter(([, steps]) => steps > 0);
  await run("destroy", "--yes", "--skip-preview");
  if (up.code === 0) return `${typed}unnoticed`;
  const late = changed.length > 0 ? `, with changes on ${changed.map(([host]) => host).join(", ")}` : "";
  return `${typed}up ${CODE.exec(up.stdout + up.stderr)?.[1]}${late}`;
}

test(`${MISTAKES.length} mistakes: at least 15 are found by tsc, 44 in preview, all before a host is changed`, {
  timeout: 600_000,
}, async () => {
  const found: [string, string][] = [];
  for (const [i, [name, mistake]] of MISTAKES.entries()) {
    found.push([name, await find(mistake, i)]);
  }
  expect(found).toEqual(MISTAKES.map(([name, , where]) => [name, where]));
  const places = found.map(([, where]) => where);
  expect(places.filter((where) => where.startsWith("tsc")).length).toBeGreaterThanOrEqual(15);
  expect(places.filter((where) => where.includes("preview ")).length).toBeGreaterThanOrEqual(44);
});
