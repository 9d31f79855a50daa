import { rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { lossOfAll } from "../lab/pings";
import { type Stack, Workspace } from "./stack";

/** The tunnel and the keys of a live stack change. Tests build on each other. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
  declare();
  await stack.mustUp();
  for (const id of [1, 2]) {
    const subnet = `10.128.${64 * id}`;
    await lab.container(`r${id}`, "job", { bridge: "overlay-br", address: `${subnet}.9/18`, gateway: `${subnet}.1` });
  }
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

function declare(network = ""): void {
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub"), ${network} });
    for (const name of ["r1", "r2"]) new overlay.RunnerSubnet(name, { network, connection: at(name) });
  `);
}

/** Lines of `pulumi preview --diff` that say what changes, in order of text: Pulumi shows runners in any order. */
async function changedLines(): Promise<string[]> {
  const text = await stack.must("preview", "--diff", "--stack", "dev", "--color", "never");
  const lines = text.split("\n").filter((line) => /^ {6}~ |~ \d+ to /.test(line));
  return lines.map((line) => line.trim().replace(/ +:/, ":")).sort();
}

interface Change {
  name: string;
  network: string;
  /** What preview shows of the network, and of each runner with `__network.` before it. */
  settings: string[];
  /** Device of the runner with this id, before and after. */
  device(id: number): string;
  mtu: number;
  hasKeys: boolean;
}

const WIREGUARD = `tunnel: "wireguard"`;
const CHANGES: Change[] = [
  {
    name: "vxlan to wireguard",
    network: WIREGUARD,
    settings: ['tunnel: "vxlan" => "wireguard"'],
    device: (id) => `"ovl${id}" => "ovlW0"`,
    mtu: 1440,
    hasKeys: true,
  },
  {
    name: "new keys",
    network: `${WIREGUARD}, keyGeneration: 1`,
    settings: ["keyGeneration: 0 => 1"],
    device: () => '"ovlW0" => "ovlW1"',
    mtu: 1440,
    hasKeys: true,
  },
  {
    name: "back to vxlan",
    network: `tunnel: "vxlan"`,
    settings: ["keyGeneration: 1 => 0", 'tunnel: "wireguard" => "vxlan"'],
    device: (id) => `"ovlW1" => "ovl${id}"`,
    mtu: 1450,
    hasKeys: false,
  },
];

const PINGS = {
  "workload to workload": { host: "r1", container: "job", target: "10.128.128.9" },
  "workload to the hub": { host: "r2", container: "job", target: "10.128.0.1" },
};

const keys = async (): Promise<unknown[]> => {
  const { training, r1, r2 } = await stack.state();
  return [training!.outputs.hubPublicKey, r1!.outputs.publicKey, r2!.outputs.publicKey].filter(Boolean);
};

test.each(CHANGES)("$name: preview shows it, and no packet is lost", async (change) => {
  const before = await keys();
  declare(change.network);
  const ofRunner = (id: number) => [
    ...change.settings.map((line) => `~ __network.${line}`),
    `~ hubDevice: ${change.device(id)}`,
    `~ runnerDevice: ${change.device(id)}`,
  ];
  const shown = [...change.settings.map((line) => `~ ${line}`), ...ofRunner(1), ...ofRunner(2), "~ 3 to update"];
  expect(await changedLines()).toEqual(shown.sort());
  const losses = await lossOfAll(lab, PINGS, () => stack.mustUp());
  for (const [name, { lost, sent }] of Object.entries(losses)) {
    expect(sent, name).toBeGreaterThan(50);
    expect(lost, name).toBe(0);
  }
  const after = await keys();
  expect(new Set(after).size).toBe(change.hasKeys ? 3 : 0);
  expect(after.filter((key) => before.includes(key))).toEqual([]);
  expect((await stack.state()).r1!.outputs.effectiveMtu).toBe(change.mtu);
  await stack.must("preview", "--refresh", "--expect-no-changes", "--stack", "dev");
});

/** The store is lost, and rebuilt from an export of the stack. */
async function recoverStore(): Promise<void> {
  const file = join(workspace.folder, "dev.json");
  await stack.must("stack", "export", "--stack", "dev", "--file", file);
  const store = workspace.store.replace("sqlite:", "");
  for (const end of ["", "-wal", "-shm", "-journal"]) rmSync(`${store}${end}`, { force: true });
  await workspace.overlayctl("recover", "--stack-export", file, "--yes");
}

test("with WireGuard a lost store is rebuilt from an export: nothing differs, and hosts keep their keys", async () => {
  declare(`${WIREGUARD}, keyGeneration: 1`);
  await stack.mustUp();
  const before = await keys();
  await recoverStore();
  await stack.must("preview", "--refresh", "--expect-no-changes", "--stack", "dev");
  await stack.mustUp();
  expect(await keys()).toEqual(before);
});

test("destroy leaves nothing", async () => {
  await stack.destroy();
  for (const { name } of lab.hosts) expect(`${name}: ${await findLeftovers(lab, name)}`).toBe(`${name}: `);
});
