import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Stack, Workspace } from "./stack";

/** What reviewers of a change read in `pulumi preview`, and operators in `pulumi up`. Tests build on each other. */
let lab: Lab;
let workspace: Workspace;
let stack: Stack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 4 });
  workspace = new Workspace(lab);
  stack = await workspace.stack("dev");
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

/** `hosts`: runner → its host. */
function program(
  hosts: Record<string, string>,
  { network = "", runner = "", login = "", cordon = "", more = "" } = {},
): void {
  const runners = Object.entries(hosts).map(
    ([name, host]) =>
      `const ${name} = new overlay.RunnerSubnet("${name}", { network, connection: at("${host}", { ${login} }), cordon: ${name === cordon}, ${runner} });`,
  );
  stack.program(`
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub", { ${login} }), ${network} });
    ${runners.join("\n    ")}
    ${more}
  `);
}

const README = readFileSync(join(__dirname, "../../README.md"), "utf8");

const HOSTS = { r1: "r1", r2: "r2", r3: "r3" };

const preview = (...args: string[]): Promise<string> =>
  stack.must("preview", "--stack", "dev", "--color", "never", ...args);

const runnerIds = async (): Promise<unknown[]> => {
  const state = await stack.state();
  return ["r1", "r2", "r3"].map((name) => state[name]!.outputs.runnerId);
};

/** The output has each line that README shows for the command; `…` stands for others. */
function expectPicture(output: string, command: string): void {
  const picture = new RegExp(`^\\$ ${command}\\b.*\\n((?:[^$\`].*\\n)+)`, "m").exec(README)?.[1] ?? "";
  const lines = picture.split("\n").filter((line) => line.trim() !== "…");
  expect(lines.length).toBeGreaterThan(1);
  expect(output.split("\n")).toEqual(expect.arrayContaining(lines));
}

test("runner ids follow the order of the program, also under components and after a destroy", async () => {
  stack.program(`
    class Rack extends pulumi.ComponentResource {
      constructor(name, host) {
        super("e2e:index:" + name, name);
        this.runner = new overlay.RunnerSubnet(host, { network, connection: at(host) }, { parent: this });
      }
    }
    const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    new Rack("b", "r1");
    new overlay.RunnerSubnet("r2", { network, connection: at("r2") });
    new Rack("a", "r3");
  `);
  const shown = (await stack.preview()).filter(({ type }) => type.endsWith("RunnerSubnet"));
  expect(Object.fromEntries(shown.map(({ name, inputs }) => [name, inputs.runnerId]))).toEqual({ r1: 1, r2: 2, r3: 3 });
  await stack.mustUp();
  expect(await runnerIds()).toEqual([1, 2, 3]);
  await stack.destroy();
  program(HOSTS);
  expectPicture(await preview("--diff"), "pulumi preview --diff");
  await stack.mustUp();
  expect(await runnerIds()).toEqual([1, 2, 3]);
  await stack.destroy();
  program({ r3: "r3", r2: "r2", r1: "r1" });
  await stack.mustUp();
  expect(await runnerIds()).toEqual([1, 2, 3]);
});

test("drift is shown as README shows it", async () => {
  program({ r3: "r3", r2: "r2", r1: "r1" });
  await lab.exec("r2", "ip link set overlay-br mtu 1300");
  expectPicture(await preview("--refresh"), "pulumi preview --refresh");
  await lab.exec("r2", "ip link set overlay-br mtu 1450");
});

test("a move to another host shows both hosts, and a new key says that it concerns no host", async () => {
  program({ ...HOSTS, r2: "r4" });
  const [from, to] = [lab.host("r2").address, lab.host("r4").address];
  expect(await preview("--diff")).toMatch(new RegExp(`~ host +: "${from}" => "${to}"`));
  program(HOSTS, { login: "privateKey: privateKey.apply((key) => key + '\\n')" });
  const text = await preview();
  for (const name of ["OverlayNetwork training", "RunnerSubnet r1", "RunnerSubnet r2"])
    expect(text).toContain(`${name}: credentials change, no host is touched.`);
  expect(text).not.toMatch(/~host/);
});

test("preview shows the lines that change, and no others", async () => {
  program(HOSTS, { network: "mtu: 1400" });
  const text = await preview("--diff");
  const lines = text.split("\n").filter((line) => /^ {5}/.test(line) && !/^ +\[(id|urn)=/.test(line));
  expect(lines.map((line) => line.trim())).toEqual([
    '~ mtu: "auto" => 1400',
    ...["r1", "r2", "r3"].map(() => '~ __network.mtu: "auto" => 1400'),
  ]);
});

test("preview shows a new runner with the name of its network, and no internal property", async () => {
  program({ ...HOSTS, r4: "r4" });
  const text = await preview("--diff");
  expect(text).toMatch(/network +: "training"/);
  expect(text).not.toMatch(/owner|__|vxlanPort|hubInterface/);
});

test("the removal of a runner with a reservation is refused in preview, and a cordoned runner can be drained", async () => {
  const urn = "urn:pulumi:dev::e2e::pulumi-nodejs:dynamic/overlay:IPReservation::job";
  const declare = (runners: Record<string, string>, cordon = "") => {
    const dependsOn = Object.keys(runners).join(", ");
    program(runners, { cordon, more: `new overlay.IPReservation("job", { network }, { dependsOn: [${dependsOn}] });` });
  };
  const runnerOfJob = async () => (await stack.state()).job!.outputs.runnerName;
  declare(HOSTS);
  await stack.mustUp();
  expect(await runnerOfJob()).toBe("r1");

  const { r1: _, ...others } = HOSTS;
  declare(others);
  const { code, text } = await stack.pulumi("preview", "--stack", "dev", "--color", "never");
  expect(code).not.toBe(0);
  expect(text).toMatch(/POOL_IN_USE: IPReservation job is in runner r1 of network training, but .* RunnerSubnet r1/);

  declare(HOSTS, "r1");
  stack.trace();
  await stack.mustUp();
  expect(Stack.writes(stack.trace())).toEqual({});
  await stack.mustUp("--replace", urn);
  expect(await runnerOfJob()).toBe("r2");
  declare(others);
  await stack.mustUp();
  expect(Object.keys(await stack.state()).sort()).toEqual(["job", "r2", "r3", "training"]);
});

test("up shows what it waits for, and what each resource has got", async () => {
  const { r1: _, ...others } = HOSTS;
  program(others, { runner: "mtu: 1400" });
  const lock = "cd /run/pulumi-overlay && echo backup >holder && date -u +%FT%TZ >>holder";
  const isAwaited = 'for i in $(seq 600); do grep -q -e "-> FLOCK" /proc/locks && break; sleep 0.1; done';
  const held = lab.exec("r2", `flock -o /run/pulumi-overlay sh -c '${lock} && { ${isAwaited}; sleep 4; }'`);
  const { code, text } = await stack.up();
  await held;
  expect(code).toBe(0);
  const { address } = lab.host("r2");
  expect(text).toMatch(
    new RegExp(`RunnerSubnet r2 updating .* waiting for the lock of ${address}, held by backup since 20`),
  );
  expect(text).toMatch(/RunnerSubnet r2 updated .* 10\.128\.128\.0\/18/);
});
