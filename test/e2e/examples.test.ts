import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { fileBackend, pulumiBinDir } from "../../setup/tools.mjs";
import { buildKohaku, IDS } from "../lab/kohaku";
import { lossDuring } from "../lab/pings";
import { ask, serve } from "../lab/services";
import { type Stack, Workspace } from "./stack";

const REPO = join(__dirname, "../..");

/** The programs under examples/ as users run them: preview, up, real traffic, a change, destroy, nothing left. */
let lab: Lab;
let workspace: Workspace;

beforeAll(async () => {
  lab = await Lab.up({ runners: 3 });
  workspace = new Workspace(lab);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

interface Workload {
  runnerName: string;
  ip: string;
  cidr: string;
  gateway: string;
}

/** A container at the address that was reserved for it, with a service that sends its name to each client. */
async function start(name: string, { runnerName, cidr, gateway }: Workload, port: number): Promise<void> {
  await lab.container(runnerName, name, { bridge: "overlay-br", address: cidr, gateway });
  await serve(lab, runnerName, name, "tcp", port, name);
}

/** The end of a stack and of its workloads. */
async function end(stack: Stack, ...containers: [host: string, name: string][]): Promise<void> {
  for (const [host, name] of containers)
    await lab.exec(host, `ip netns pids ${name} | xargs -r kill; ip netns del ${name}`);
  await stack.destroy();
}

async function nothingIsLeft(): Promise<void> {
  for (const { name } of lab.hosts) expect(`${name}: ${await findLeftovers(lab, name)}`).toBe(`${name}: `);
}

const runnersOf = (...names: string[]): string =>
  JSON.stringify(Object.fromEntries(names.map((name) => [name, lab.host(name).address])));

const README = readFileSync(join(REPO, "README.md"), "utf8").split("### Run an example")[1]!;
const [, BLOCK] = /^```sh\n(.*?)^```$/ms.exec(README)!;
/** The command in the table below it. */
const alsoSet = (example: string): string =>
  new RegExp(`^\\| ${example} \\|.*?\`(pulumi .*?)\``, "m").exec(README)?.[1] ?? ":";

/** Answers Pulumi's questions, and links packages instead of downloading them. */
const PRELUDE = `set -eo pipefail
pulumi() { case $1 in login) return ;; up | destroy) set -- "$@" --yes --skip-preview --color never ;; esac; command pulumi --non-interactive "$@"; }
npm() { mkdir -p node_modules/@pulumi; ln -s ${REPO} node_modules/pulumi-overlay; ln -s ${REPO}/node_modules/@pulumi/pulumi node_modules/@pulumi; }
overlayctl() { ${process.execPath} ${REPO}/dist/cli/overlayctl.js "$@"; }`;

/** The commands of README for an example, into a folder, with more before its last line. */
function stepsOf(example: string, folder: string, ...more: string[]): string[] {
  const steps = BLOCK!.trimEnd().split("\n");
  const isApp = example.endsWith("app");
  const configured = steps.slice(0, -1).filter((line) => !(isApp && /config set (?!overlay)/.test(line)));
  const named = configured.map((line) => line.replace("quickstart", example).replaceAll("my-overlay", folder));
  return [...named, ...more, steps.at(-1)!];
}

/** Pastes commands into a shell of a user with a home of its own. */
async function paste(home: string, ...steps: string[]): Promise<string> {
  const script = [PRELUDE, ...steps].join("\n");
  const env = {
    ...{ PATH: `${pulumiBinDir()}:${process.env.PATH}`, HOME: home, LANG: "C.UTF-8", PACKAGE: REPO },
    // `pulumi login --local` would use the home of the machine's user, whatever HOME is.
    ...{ PULUMI_HOME: join(home, ".pulumi"), PULUMI_BACKEND_URL: fileBackend(home) },
    ...{ PULUMI_CONFIG_PASSPHRASE: "lab", PULUMI_SKIP_UPDATE_CHECK: "true" },
    PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION: "true",
  };
  const { code, stdout, stderr } = await lab.controller("bash", ["-c", script], { cwd: home, env });
  expect(`${code} ${code === 0 ? "" : stdout + stderr}`).toBe("0 ");
  return stdout;
}

function makeHome(): string {
  const home = mkdtempSync(join(workspace.folder, "home-"));
  mkdirSync(join(home, ".ssh"));
  copyFileSync(lab.privateKeyPath, join(home, ".ssh/id_ed25519"));
  copyFileSync(lab.knownHosts, join(home, ".ssh/known_hosts"));
  mkdirSync(join(home, "node_modules"));
  symlinkSync(REPO, join(home, "node_modules/pulumi-overlay"));
  return home;
}

const ownStore = "pulumi config set overlay:store sqlite:$PWD/pool.db";

test.each(["quickstart", "distributed-training", "ci-runners", "two-services", "two-tenants"])(
  "%s works as README says, and overlayctl takes the settings of its stack",
  async (example) => {
    const home = makeHome();
    expect(await paste(home, ...stepsOf(example, "mine", alsoSet(example), ownStore))).toContain("r1 created");
    const listed = await paste(home, "cd mine; overlayctl --stack dev pool list; pulumi destroy");
    expect(listed).toMatch(/runner\/\w+\/r1 /);
    await nothingIsLeft();
  },
);

test("two-stacks works as README says", async () => {
  const home = makeHome();
  const shared = "pulumi config set overlay:store sqlite:$HOME/pool.db";
  await paste(home, ...stepsOf("two-stacks/platform", "platform", shared));
  const text = await paste(home, ...stepsOf("two-stacks/app", "app", alsoSet("two-stacks"), shared));
  expect(text).toContain("database created");
  await paste(home, "cd app; pulumi destroy; cd ../platform; pulumi destroy");
  await nothingIsLeft();
});

const previewed = async (stack: Stack): Promise<Record<string, unknown>> =>
  Object.fromEntries((await stack.preview()).map(({ name, inputs }) => [name, inputs.ip]));

test("distributed-training: every worker knows the master's address before anything is started", async () => {
  const stack = await workspace.example("distributed-training", ["r1", "r2"]);
  const promised = await previewed(stack);
  await stack.mustUp();
  interface Outputs {
    masterAddress: string;
    jobs: (Workload & { command: string })[];
  }
  const { masterAddress, jobs } = await stack.outputs<Outputs>();
  expect(masterAddress).toBe(promised["worker-r1"]);
  expect(jobs.map(({ ip }) => ip)).toEqual([promised["worker-r1"], promised["worker-r2"]]);
  expect(jobs[1]!.command).toBe(
    `docker run --network pulumi-overlay --ip ${jobs[1]!.ip} -e RANK=1 -e WORLD_SIZE=2 -e MASTER_ADDR=${masterAddress} -e MASTER_PORT=29500 train`,
  );
  for (const [rank, job] of jobs.entries()) await start(`rank${rank}`, job, 29500);
  expect(await ask(lab, { at: "r2", inside: "rank1" }, masterAddress, 29500)).toBe(`rank0 sees ${jobs[1]!.ip}`);

  await stack.configure({ runners: runnersOf("r1", "r2", "r3") });
  await stack.mustUp();
  const grown = await stack.outputs<Outputs>();
  expect(grown.jobs.slice(0, 2).map(({ ip }) => ip)).toEqual(jobs.map(({ ip }) => ip));
  await start("rank2", grown.jobs[2]!, 29500);
  expect(await ask(lab, { at: "r3", inside: "rank2" }, masterAddress, 29500)).toBe(`rank0 sees ${grown.jobs[2]!.ip}`);
  await end(stack, ["r1", "rank0"], ["r2", "rank1"], ["r3", "rank2"]);
  await nothingIsLeft();
});

test("ci-runners: addresses on any runner, used by token, and expired without a release", async () => {
  const jobs = { jobs: JSON.stringify(["lint", "unit"]) };
  const stack = await workspace.example("ci-runners", ["r1", "r2"], { config: jobs });
  const promised = await previewed(stack);
  await stack.mustUp();
  type Leased = Workload & { expiresAt: string; token: string };
  const { leases } = await stack.outputs<{ leases: Leased[] }>();
  expect(leases.map(({ ip }) => ip)).toEqual([promised.lint, promised.unit]);
  expect(leases.map(({ runnerName }) => runnerName).sort()).toEqual(["r1", "r2"]);
  expect(Date.parse(leases[0]!.expiresAt) - Date.now()).toBeGreaterThan(0);

  const [lint, unit] = leases as [Leased, Leased];
  const used = await workspace.overlayctl("ip", "use", "--token", lint.token, "--by", "job-1", "--json");
  expect(JSON.parse(used)).toMatchObject({ ip: lint.ip, state: "used", usedBy: "job-1" });
  await start("lint", lint, 8080);
  await start("unit", unit, 8080);
  expect(await ask(lab, { at: unit.runnerName, inside: "unit" }, lint.ip, 8080)).toBe(`lint sees ${unit.ip}`);

  await stack.configure({ jobs: JSON.stringify(["lint", "unit", "docs"]) });
  await stack.mustUp();
  const { leases: three } = await stack.outputs<{ leases: Leased[] }>();
  expect(three.slice(0, 2).map(({ ip }) => ip)).toEqual([lint.ip, unit.ip]);
  expect(new Set(three.map(({ ip }) => ip)).size).toBe(3);

  const refused = await stack.pulumi("destroy", "--yes", "--skip-preview", "--stack", "dev", "--color", "never");
  expect(refused.code).not.toBe(0);
  expect(refused.text).toContain(`${lint.ip} is used by job-1`);
  await workspace.overlayctl("ip", "release", "--by", "job-1");
  await end(stack, [lint.runnerName, "lint"], [unit.runnerName, "unit"]);
  await nothingIsLeft();
});

test("two-stacks: one owns the network, the other only addresses on it, by name", async () => {
  const platform = await workspace.example("two-stacks/platform", ["r1", "r2"]);
  await platform.mustUp();
  const app = await workspace.example("two-stacks/app", [], {
    config: { platform: "organization/overlay-two-stacks-platform/dev" },
  });
  const promised = await previewed(app);
  await app.mustUp();
  const { services } = await app.outputs<{ services: Workload[] }>();
  const [web, database] = services as [Workload, Workload];
  expect([web.ip, database.ip]).toEqual([promised.web, promised.database]);
  expect([web.runnerName, database.runnerName]).toEqual(["r1", "r2"]);
  await start("web", web, 80);
  await start("database", database, 5432);
  expect(await ask(lab, { at: "r1", inside: "web" }, database.ip, 5432)).toBe(`database sees ${web.ip}`);

  const early = await platform.pulumi("destroy", "--yes", "--skip-preview", "--stack", "dev", "--color", "never");
  expect(early.code).not.toBe(0);
  expect(early.text).toMatch(/POOL_IN_USE: .*overlay-two-stacks-app.*IPReservation::(web|database)/);
  await end(app, ["r1", "web"], ["r2", "database"]);
  await platform.destroy();
  await nothingIsLeft();
});

test("mesh: workloads send directly; a runner that joins is named in preview, and its hosts are changed in the same up", async () => {
  const stack = await workspace.example("mesh", ["r1", "r2"]);
  await stack.mustUp();
  const { jobs } = await stack.outputs<{ jobs: Workload[] }>();
  const [one, two] = jobs as [Workload, Workload];
  const routes = async (host: string) =>
    (await lab.exec(host, "ip -4 route show proto 183 | grep -c ovlM0")).stdout.trim();
  expect([await routes("r1"), await routes("r2")]).toEqual(["1", "1"]);
  for (const [host, { cidr, gateway }] of [
    ["r1", one],
    ["r2", two],
  ] as const)
    await lab.container(host, "job", { bridge: "overlay-br", address: [cidr], gateway: [gateway] });
  const sent = async () => Number((await lab.exec("r1", "cat /sys/class/net/ovlM0/statistics/tx_packets")).stdout);
  const before = await sent();
  expect((await lab.exec("r1", `ip netns exec job ping -n -c 3 -W 2 ${two.ip}`)).stdout).toContain("3 received");
  expect((await sent()) - before).toBeGreaterThanOrEqual(3);
  expect(await stack.must("preview", "--refresh", "--expect-no-changes")).toContain("unchanged");

  await stack.configure({ runners: runnersOf("r1", "r2", "r3") });
  expect(await stack.must("preview", "--color", "never")).toContain(
    "RunnerSubnet r3 joins the mesh of 2 runners, whose hosts get it as a peer: r1, r2.",
  );
  await stack.mustUp();
  expect(await Promise.all(["r1", "r2", "r3"].map(routes))).toEqual(["2", "2", "2"]);
  expect(await stack.must("preview", "--expect-no-changes")).toContain("unchanged");
  for (const name of ["r1", "r2"]) await lab.exec(name, "ip netns del job");
  await stack.must("destroy", "--yes", "--skip-preview", "--parallel", "1"); // each delete is done before the next begins
  await stack.destroy();
  await nothingIsLeft();
});

test("encrypted: preview, pings of both families over WireGuard, no drift, and nothing is left", async () => {
  const stack = await workspace.example("encrypted", ["r1", "r2"]);
  const steps = await stack.preview();
  expect(steps.filter(({ op }) => op === "create").map(({ name }) => name)).toEqual(
    expect.arrayContaining(["private", "r1", "r2", "job-r1", "job-r2"]),
  );
  expect(steps.find(({ name }) => name === "r1")!.inputs).toMatchObject({ hubDevice: "ovlW0", runnerDevice: "ovlW0" });
  await stack.mustUp();
  interface Outputs {
    hubPublicKey: string;
    jobs: (Workload & { publicKey: string })[];
  }
  const { hubPublicKey, jobs } = await stack.outputs<Outputs>();
  const [one, two] = jobs as [Outputs["jobs"][0], Outputs["jobs"][0]];
  const state = await stack.state();
  expect(state.r1!.outputs).toMatchObject({ effectiveMtu: 1440, drift: [], publicKey: one.publicKey });
  const shown = await lab.exec("hub", "wg show ovlW0 public-key; wg show ovlW0 peers | sort");
  expect(shown.stdout.trim().split("\n")).toEqual([hubPublicKey, ...jobs.map(({ publicKey }) => publicKey).sort()]);

  const [six, sixGateway] = [1, 2].map((id) => [`fd00:128:0:${id}::9`, `fd00:128:0:${id}::1`]) as [string[], string[]];
  await lab.container("r1", "job", {
    bridge: "overlay-br",
    address: [one.cidr, `${six[0]}/64`],
    gateway: [one.gateway, six[1]!],
  });
  await lab.container("r2", "job", {
    bridge: "overlay-br",
    address: [two.cidr, `${sixGateway[0]}/64`],
    gateway: [two.gateway, sixGateway[1]!],
  });
  for (const target of [two.ip, sixGateway[0]!])
    expect((await lab.exec("r1", `ip netns exec job ping -n -c 3 -W 2 ${target}`)).stdout).toContain("3 received");

  expect(await stack.must("preview", "--refresh", "--expect-no-changes")).toContain("unchanged");
  for (const name of ["r1", "r2"]) await lab.exec(name, "ip netns del job");
  await stack.destroy();
  await nothingIsLeft();
});

test("two-tenants: disjoint blocks, a quota each, and a public address in front of each service", async () => {
  const stack = await workspace.example("two-tenants", ["r1"]);
  const promised = await previewed(stack);
  await stack.mustUp();
  type Tenant = { org: string; block: string[]; service: string; cidr: string; gateway: string; front: string };
  const { tenants } = await stack.outputs<{ tenants: Tenant[] }>();
  const [red, blue] = tenants as [Tenant, Tenant];
  expect([red.front, blue.front]).toEqual([promised["front-red"], promised["front-blue"]]);
  expect(red.block).not.toEqual(blue.block);
  expect([...red.block, ...blue.block]).toEqual([1, 2].map(() => expect.stringMatching(/^198\.51\.100\.\d+\/28$/)));
  for (const { org, service, cidr, gateway } of tenants)
    await start(`web-${org}`, { runnerName: "r1", ip: service, cidr, gateway }, 8080);
  await lab.controller("ip", ["route", "add", "198.51.100.0/24", "via", lab.host("hub").address]);
  expect(await ask(lab, { at: "controller" }, red.front, 80)).toMatch(/^web-red sees /);
  expect(await ask(lab, { at: "controller" }, blue.front, 80)).toMatch(/^web-blue sees /);

  const source = join(stack.folder, "index.ts");
  const program = readFileSync(source, "utf8");
  const tenant = '{ org: "red", project: "shop" }';
  const oneMore = `new overlay.IPReservation("one-more", { pool: "public-red", tenant: ${tenant} });`;
  writeFileSync(source, `${program}\n${oneMore}\n`);
  const refused = await stack.pulumi("preview", "--stack", "dev", "--color", "never");
  expect(refused.code).not.toBe(0);
  expect(refused.text).toMatch(/POOL_QUOTA: .*public-red/);
  writeFileSync(source, program.replace("port: 80,", "port: 8000,"));
  await stack.mustUp();
  expect(await ask(lab, { at: "controller" }, red.front, 8000)).toMatch(/^web-red sees /);
  await end(stack, ["r1", "web-red"], ["r1", "web-blue"]);
  await nothingIsLeft();
});

test("adoption: an existing overlay is adopted without a lost packet, and removed by destroy", async () => {
  await buildKohaku(lab);
  const stack = await workspace.example("adoption", ["r1", "r2"], { config: { ids: JSON.stringify(IDS) } });
  const from = { host: "r1", container: "c1", target: "10.128.64.10" };
  expect(await lossDuring(lab, from, () => stack.mustUp())).toMatchObject({ lost: 0 });
  expect((await stack.outputs<{ subnets: string[] }>()).subnets).toEqual(["10.128.192.0/18", "10.128.64.0/18"]);
  await stack.mustUp("--refresh", "--expect-no-changes");
  await stack.destroy();
  expect((await lab.exec("hub", "ip -o link show | grep -c vxkr")).stdout.trim()).toBe("0");
});
