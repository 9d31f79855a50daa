import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { openIpam } from "../../provider/ipam";
import { listSpecs } from "../../provider/ipam/interface";
import type { Lease, Store } from "../../provider/ipam/types";
import { Ctl } from "../unit/cli/ctl";
import { type Stack, Workspace } from "./stack";

/** Addresses in a stack over many ups. Hosts are not needed for them: only the two runners at the start are real. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;
const ctl = new Ctl();

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
  ctl.remove();
});

async function withPool<T>(act: (pool: Store) => Promise<T>): Promise<T> {
  const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
  return act(pool).finally(() => pool.end());
}

/** Leases of the pool, without offers and quarantined ones. */
const held = (name: string): Promise<Lease[]> =>
  withPool(async (pool) => (await pool.leases(name)).filter(({ state }) => state === "reserved" || state === "used"));

const overlayctl = (...args: string[]) => ctl.must(...args, "--store", workspace.store);

const urn = (name: string): string =>
  `urn:pulumi:${stack.name}::e2e::pulumi-nodejs:dynamic/overlay:IPReservation::${name}`;

interface Parts {
  [part: string]: string;
}
/** The program, part by part, so that a test says only what it changes. */
const PARTS: Parts = {
  network: `const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    const [r1, r2] = ["r1", "r2"].map((name, i) =>
      new overlay.RunnerSubnet(name, { network, connection: at(name), runnerId: i + 1 }));`,
  pools: `const lb = new overlay.IPPool("lb", { ranges: ["203.0.113.8/29"], type: "loadBalancer" });
    const tiny = new overlay.IPPool("tiny", { ranges: ["198.51.100.0/30"], quota: { maxReservations: 1 } });`,
  master: `const master = new overlay.IPReservation("master", { runner: r1 });`,
  job: `const job = new overlay.IPReservation("job", { runner: r2, kind: "vm", ttl: true });`,
  any: `new overlay.IPReservation("any", { network, placement: "spread" }, { dependsOn: [r1, r2] });`,
  web: `new overlay.IPReservation("web", { pool: lb });`,
  tenant: `new overlay.IPReservation("svc", { tenant: { org: "acme", project: "web" }, type: "clusterIP" });`,
  swap: `new overlay.IPReservation("a", { runner: r1, ip: "10.128.64.8" });
    new overlay.IPReservation("b", { runner: r1, ip: "10.128.64.9" });`,
  full: `new overlay.IPReservation("full", { pool: tiny, ip: "198.51.100.1" });`,
};
const program = (changes: Parts = {}): void =>
  stack.program([...Object.values({ ...PARTS, ...changes }), "return { token: job.token };"].join("\n"));

const addresses = async (): Promise<Record<string, unknown>> =>
  Object.fromEntries(
    Object.entries(await stack.state()).flatMap(([name, { outputs }]) => (outputs.ip ? [[name, outputs.ip]] : [])),
  );

let first: Record<string, unknown>;

test("the first preview shows every address, up gives exactly these, and no token is in plain text", async () => {
  program();
  const steps = await stack.preview();
  const shown = Object.fromEntries(
    steps.flatMap(({ name, inputs }) => (inputs.ip && inputs.cidr ? [[name, inputs.ip]] : [])),
  );
  expect(Object.keys(shown).sort()).toEqual(["a", "any", "b", "full", "job", "master", "svc", "web"]);
  expect(steps.find(({ name }) => name === "master")?.inputs.dockerRunArgs).toBe(
    `--network pulumi-overlay --ip ${shown.master}`,
  );
  await stack.mustUp();
  first = await addresses();
  expect(first).toEqual(shown);
  const { token } = await stack.outputs<{ token: string }>();
  stack.log.pop();
  expect(await stack.reveals(token)).toBe(false);
});

test("overlayctl accepts the token once: it is valid, is used, and cannot be used again", async () => {
  const { token } = await stack.outputs<{ token: string }>();
  expect(await overlayctl("ip", "validate", token, "--runner", "training/r2")).toMatchObject([
    { ip: first.job, state: "reserved" },
  ]);
  expect(await ctl.refusal("ip", "validate", token, "--runner", "r1", "--store", workspace.store)).toBe(
    "1 TOKEN_RUNNER",
  );
  await overlayctl("ip", "use", "--token", token, "--by", "box");
  expect(await ctl.refusal("ip", "validate", token, "--store", workspace.store)).toBe("1 TOKEN_USED");
  expect(await stack.preview()).toEqual([]);
  await overlayctl("ip", "free", "--network", "training", "--runner", "r2", "--ip", String(first.job), "--force");
});

test("a reservation that expired, or was released by hand, is shown in a plain preview and gets its address again", async () => {
  await withPool(async (pool) => {
    const lease = (await pool.leases("runner/training/r1")).find(({ owner }) => owner.endsWith("::master"))!;
    await pool.change(lease.pool, lease.leaseId, { ttl: 1 });
  });
  await sleep(1100);
  const steps = await stack.preview();
  const replaced = steps.filter(({ op }) => op === "replace").map(({ name, inputs }) => [name, inputs.ip]);
  expect(Object.fromEntries(replaced)).toEqual({ master: first.master, job: first.job });
  await stack.mustUp();
  expect(await addresses()).toEqual(first);
  expect((await held("runner/training/r1")).map(({ owner }) => owner.split("::").at(-1))).toContain("master");
});

test("in one up: a swap, a rename, a pin, a full pool's replacement, and equal names under two components", async () => {
  program({
    swap: PARTS.swap!.replace("64.8", "64.X").replace("64.9", "64.8").replace("64.X", "64.9"),
    web: `new overlay.IPReservation("www", { pool: lb }, { aliases: [{ name: "web" }] });`,
    master: `const master = new overlay.IPReservation("master", { runner: r1, ip: "${first.master}" });`,
    full: `new overlay.IPReservation("full", { pool: tiny, ip: "198.51.100.2" });`,
    teams: `for (const team of ["a", "b"]) {
      const parent = new pulumi.ComponentResource("teams:index:" + team, "team-" + team);
      new overlay.IPReservation("node", { runner: r2 }, { parent });
      new overlay.IPReservation("spare-" + team, { runner: r2 }, { parent });
    }`,
  });
  stack.trace();
  await stack.mustUp();
  const { web, ...rest } = first;
  expect(await addresses()).toMatchObject({
    ...rest,
    www: web,
    a: "10.128.64.9",
    b: "10.128.64.8",
    full: "198.51.100.2",
  });
  const onR1 = (await held("runner/training/r1")).map(({ owner }) => owner.split("::").at(-1)).sort();
  expect(onR1.filter((name) => name !== "any")).toEqual(["a", "b", "master"]);
  const nodes = (await held("runner/training/r2")).filter(({ owner }) => owner.endsWith("::node"));
  expect(new Set(nodes.map(({ ranges }) => ranges[0]!.first)).size).toBe(2);
  expect((await held("pool/tiny")).map(({ owner }) => owner.split("::").at(-1))).toEqual(["full"]);
  expect((await held("pool/lb")).map(({ owner }) => owner.split("::").at(-1))).toEqual(["www"]);
  expect(stack.trace().filter(({ conversation }) => conversation)).toEqual([]);
});

/** The program from here on. */
const LATER: Parts = {
  swap: "",
  full: "",
  web: `new overlay.IPReservation("www", { pool: lb });`,
};

test("a forced replacement with equal inputs, unpinned again, keeps its address under a new lease", async () => {
  program(LATER);
  const before = (await stack.state()).master!.outputs;
  await stack.mustUp("--replace", urn("master"));
  const after = (await stack.state()).master!.outputs;
  expect(after.ip).toBe(before.ip);
  expect(after.leaseId).not.toBe(before.leaseId);
  expect(await held("pool/tiny")).toEqual([]);
  await stack.mustUp("--expect-no-changes");
});

test("an address of a dependent resource changes: a failure in the middle keeps both leases, the next up releases the old one", async () => {
  const dependent = (fails: boolean): string => `
    class Dependent extends pulumi.dynamic.Resource {
      constructor(name, props) {
        super({
          create: async (inputs) => ({ id: name, outs: inputs }),
          update: async (id, olds, news) => { if (news.fails) throw new Error("not today"); return { outs: news }; },
        }, name, props);
      }
    }
    new Dependent("dependent", { ip: moving.ip, fails: ${fails} });`;
  const moving = (ip: string): string =>
    `const moving = new overlay.IPReservation("moving", { runner: r2, ip: "${ip}" });`;
  const owned = async () => (await held("runner/training/r2")).filter(({ owner }) => owner.endsWith("::moving")).length;
  program({ ...LATER, moving: moving("10.128.128.8"), dependent: dependent(false) });
  await stack.mustUp();
  program({ ...LATER, moving: moving("10.128.128.9"), dependent: dependent(true) });
  expect((await stack.up()).code).not.toBe(0);
  expect(await owned()).toBe(2);
  program({ ...LATER, moving: moving("10.128.128.9"), dependent: dependent(false) });
  await stack.mustUp();
  expect(await owned()).toBe(1);
  expect((await stack.state()).moving!.outputs.ip).toBe("10.128.128.9");
});

test("a stack under another name keeps every address, and destroy releases all", async () => {
  program({ ...LATER });
  await stack.rename("prod");
  await stack.mustUp();
  const { a: _, b: __, full: ___, web, ...rest } = first;
  expect(await addresses()).toEqual({ ...rest, www: web });
  expect((await held("pool/lb"))[0]?.owner).toContain("urn:pulumi:prod::");
  await stack.destroy();
  await withPool(async (pool) => {
    expect(
      (await listSpecs(pool)).map(({ name }) => name).filter((name) => !/^(space|pool\/tenants?)\//.test(name)),
    ).toEqual([]);
    expect(await pool.admin.fsck()).toEqual([]);
  });
});
