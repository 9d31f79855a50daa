import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { openPool } from "../../provider/pool";
import { type Stack, Workspace } from "./stack";

/** What preview showed is what up gives, or up stops and says why: with the real CLI, one store, several stacks. */
let lab: Lab;
let workspace: Workspace;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  workspace = new Workspace(lab);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

const POOL = (base: string) =>
  `const pool = new overlay.IPPool(pulumi.getStack() + "-pool", { ranges: ["${base}.0/24"], allocation: "lowest" });`;
const address = (name: string, more = "", options = "") =>
  `new overlay.IPReservation("${name}", { pool, ${more} }${options && `, ${options}`});`;

const shown = async (stack: Stack): Promise<Record<string, unknown>> =>
  Object.fromEntries((await stack.preview()).map(({ name, inputs }) => [name, inputs.ip]));
const given = async (stack: Stack): Promise<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(await stack.state()).map(([name, { outputs }]) => [name, outputs.ip]));

async function fsck(): Promise<unknown[]> {
  const pool = await openPool(workspace.store, { offerTtl: 3600, quarantine: 300 });
  return pool.fsck().finally(() => pool.end());
}

test("two that want one address: refused in preview, settled by it, and up gives what the next preview shows", async () => {
  const stack = await workspace.stack("pins");
  stack.program(`${POOL("10.61.0")}
    const n = ${address("n")}
    ${address("r", `ip: "10.61.0.0"`, "{ dependsOn: [n] }")}`);
  const refused = await stack.pulumi("preview", "--stack", stack.name);
  expect(refused.code).not.toBe(0);
  expect(refused.text).toMatch(/IP_IN_USE: Address 10\.61\.0\.0 .* kept for IPReservation r.* Run preview again/s);
  const promised = await shown(stack);
  expect(promised).toMatchObject({ n: "10.61.0.1", r: "10.61.0.0" });
  await stack.mustUp();
  expect(await given(stack)).toMatchObject({ n: promised.n, r: promised.r });
  await stack.mustUp("--expect-no-changes");
  await stack.destroy();
});

test("a branch that was previewed and not merged changes nothing for main", async () => {
  const stack = await workspace.stack("branches");
  const main = `${POOL("10.62.0")} ${address("a")}`;
  stack.program(main);
  const promised = await shown(stack);
  stack.program(`${POOL("10.62.0")} ${address("a", `ip: "10.62.0.77"`)}`);
  expect((await shown(stack)).a).toBe("10.62.0.77");
  stack.program(main);
  await stack.mustUp();
  expect((await given(stack)).a).toBe(promised.a);
});

test("a rename with alias and a swap of addresses in one up", async () => {
  const stack = await workspace.stack("swaps");
  stack.program(`${POOL("10.63.0")} ${address("a", `ip: "10.63.0.1"`)} ${address("b", `ip: "10.63.0.2"`)}`);
  await stack.mustUp();
  stack.program(`${POOL("10.63.0")}
    ${address("c", `ip: "10.63.0.2"`, `{ aliases: [{ name: "a" }] }`)} ${address("b", `ip: "10.63.0.1"`)}`);
  const promised = await shown(stack);
  expect(promised).toMatchObject({ c: "10.63.0.2", b: "10.63.0.1" });
  await stack.mustUp();
  expect(await given(stack)).toMatchObject({ c: "10.63.0.2", b: "10.63.0.1" });
  await stack.mustUp("--expect-no-changes");
  expect(await fsck()).toEqual([]);

  stack.program(`${POOL("10.63.0")} ${address("d", `ip: "10.63.0.2"`)} ${address("b", `ip: "10.63.0.1"`)}`);
  const refused = await stack.pulumi("preview", "--stack", stack.name);
  expect(refused.text).toMatch(/IP_IN_USE: Address 10\.63\.0\.2 .*::c\. .*let it go in an up of its own/s);
});

test("a destroy whose end the state does not know is no lost store: the same addresses are given again", async () => {
  const stack = await workspace.stack("restored");
  stack.program(`${POOL("10.64.0")} ${address("a")} ${address("b")}`);
  await stack.mustUp();
  const before = await given(stack);
  const file = join(workspace.folder, "export.json");
  await stack.must("stack", "export", "--stack", stack.name, "--file", file);
  await stack.destroy();
  await stack.must("stack", "import", "--stack", stack.name, "--file", file);
  expect(await shown(stack)).toMatchObject({ a: before.a, b: before.b });
  await stack.mustUp();
  expect(await given(stack)).toEqual(before);
  await stack.mustUp("--expect-no-changes");
  await stack.destroy();
});

test("a destroy that was killed is shown by the next preview, and up puts back what is missing", async () => {
  const stack = await workspace.stack("killed");
  stack.program(`const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
    new overlay.RunnerSubnet("r1", { network, connection: at("r1") });`);
  await stack.mustUp();
  // What a destroy does first, and then the runner's part is gone.
  const pool = await openPool(workspace.store, { offerTtl: 3600, quarantine: 300 });
  const [lease] = await pool.leases("network/training");
  await pool.amend("network/training", lease!.leaseId, { deleting: true });
  await pool.close("network/training", lease!.leaseId);
  await pool.end();
  await lab.exec("r1", "ip link del kohaku-overlay; ip link del vxkr1");
  const preview = await stack.must("preview", "--stack", stack.name);
  expect(preview).toMatch(/RunnerSubnet r1: a delete that began at .* was not finished\. Up puts back/);
  await stack.mustUp();
  expect((await lab.exec("r1", "ip -br link show kohaku-overlay")).code).toBe(0);
  await stack.mustUp("--expect-no-changes");
  await stack.destroy();
});

test("the option import is refused with the way that works", async () => {
  const stack = await workspace.stack("imports");
  stack.program(`${POOL("10.65.0")} ${address("a", "", `{ import: "x" }`)}`);
  const { code, text } = await stack.pulumi("preview", "--stack", stack.name);
  expect(code).not.toBe(0);
  expect(text).toMatch(/IPReservation a: the option `import` does not work with this package\. Set `adopt: true`/);
});
