import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { openIpam } from "../../provider/ipam";
import { type Stack, Workspace } from "./stack";

/** Up gives the values that preview showed, or stops with the reason: with the real CLI, one store, several stacks. */
let lab: Lab;
let workspace: Workspace;

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
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
  const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
  return pool.admin.fsck().finally(() => pool.end());
}

test("an address that one resource requests is given to no other, although that one is checked first", async () => {
  const stack = await workspace.stack("pins");
  stack.program(`${POOL("10.61.0")}
    const n = ${address("n")}
    ${address("r", `ip: "10.61.0.0"`, "{ dependsOn: [n] }")}`);
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

test("two branches were shown one value: the first that is deployed has it, and the up of the other stops", async () => {
  const stack = await workspace.stack("moved");
  const main = `${POOL("10.66.0")} ${address("a")}`;
  const branch = `${main} ${address("b", `ip: "10.66.0.0"`)}`;
  stack.program(main);
  expect((await shown(stack)).a).toBe("10.66.0.0");
  stack.program(branch);
  expect(await shown(stack)).toMatchObject({ a: "10.66.0.1", b: "10.66.0.0" });
  stack.program(main);
  await stack.mustUp();
  expect((await given(stack)).a).toBe("10.66.0.0");
  stack.program(branch);
  const { code, text } = await stack.up();
  expect(code).not.toBe(0);
  expect(text).toMatch(/PLAN_STALE: Address 10\.66\.0\.0 .* was promised to IPReservation b .*::a\. Run preview/s);
});

test("a program with await and apply is one program, in preview and up: up gives what was shown, or stops", async () => {
  const stack = await workspace.stack("turns");
  // The urn of the pool is known in preview, and its lease id is not: preview does not run what is applied to that.
  const program = (first: string, later: string) => `${POOL("10.69.0")} ${first}
    pool.leaseId.apply(() => { ${address("late", `ip: "10.69.0.9"`)} });
    return new Promise((resolve) => pool.urn.apply(resolve)).then(async () => {
      await Promise.all(["c", "d"].map(async (name) => {
        await require("node:fs/promises").readFile("Pulumi.yaml");
        new overlay.IPReservation(name, { pool, ip: "10.69.0." + (name === "c" ? 7 : 8) });
      }));
      ${later}
      return {};
    });`;
  const main = program("", address("a"));
  const branch = program(address("b", `ip: "10.69.0.0"`), address("a"));
  stack.program(main);
  expect((await shown(stack)).a).toBe("10.69.0.0");
  stack.program(branch);
  expect(await shown(stack)).toMatchObject({ a: "10.69.0.1", b: "10.69.0.0" });
  stack.program(main);
  expect(await shown(stack)).toMatchObject({ a: "10.69.0.0" });
  stack.program(branch);
  await stack.mustUp();
  expect(await given(stack)).toMatchObject({ a: "10.69.0.1", b: "10.69.0.0", c: "10.69.0.7", late: "10.69.0.9" });
  await stack.mustUp("--expect-no-changes");
  expect(await fsck()).toEqual([]);
});

test("two addresses are swapped, as preview shows, although one resource depends on the other", async () => {
  const stack = await workspace.stack("chains");
  const program = (a: string, b: string) => `${POOL("10.67.0")}
    const a = ${address("a", `ip: "10.67.0.${a}"`)} ${address("b", `ip: "10.67.0.${b}"`, "{ dependsOn: [a] }")}`;
  stack.program(program("1", "2"));
  await stack.mustUp();
  stack.program(program("2", "1"));
  expect(await shown(stack)).toMatchObject({ a: "10.67.0.2", b: "10.67.0.1" });
  await stack.mustUp();
  expect(await given(stack)).toMatchObject({ a: "10.67.0.2", b: "10.67.0.1" });
  await stack.mustUp("--expect-no-changes");
  expect(await fsck()).toEqual([]);

  // Declared after a is created: the check of a cannot know it, and refuses, in preview as in up.
  stack.program(`${POOL("10.67.0")} const a = ${address("a", `ip: "10.67.0.1"`)}
    return new Promise((resolve) => a.urn.apply(resolve)).then(() => { ${address("b", `ip: "10.67.0.2"`)} return {}; });`);
  const refusal = /IP_IN_USE: Address 10\.67\.0\.1 .*::b\. .*declare it before the program's first `await`/s;
  expect((await stack.pulumi("preview", "--stack", stack.name)).text).toMatch(refusal);
  expect((await stack.up()).text).toMatch(refusal);
  expect(await given(stack)).toMatchObject({ a: "10.67.0.2", b: "10.67.0.1" });
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
  expect(refused.text).toMatch(/IP_IN_USE: Address 10\.63\.0\.2 .*::c\. .*remove it in an earlier up/s);
});

test("a pool is not replaced under the lease of another stack: preview and up refuse it, and nothing is deleted", async () => {
  const [stack, other] = [await workspace.stack("replaced"), await workspace.stack("other")];
  const program = (more = "") => `const pool = new overlay.IPPool("shared", { ranges: ["10.68.0.0/28"], ${more} });
    ${address("a", `ip: "10.68.0.7"`)}`;
  stack.program(program());
  await stack.mustUp();
  other.program(`new overlay.IPReservation("theirs", { pool: "shared" });`);
  await other.mustUp();
  const held = async (): Promise<unknown> => {
    const leaseId = String((await stack.state()).a!.outputs.leaseId);
    const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
    return pool.find({ pool: "pool/shared", leaseId }).finally(() => pool.end());
  };

  stack.program(program(`type: "clusterIP"`));
  const refusal = /POOL_IN_USE: IPPool shared cannot be replaced \(change of type\): .*::theirs/s;
  expect((await stack.pulumi("preview", "--stack", stack.name)).text).toMatch(refusal);
  expect((await stack.up()).text).toMatch(refusal);
  expect(await held()).toBeDefined();

  await other.destroy();
  // One that names the pool is not replaced with it, and may be checked after the pool: its lease stops the first delete.
  const named = `new overlay.IPReservation("named", { pool: "shared" }, { dependsOn: [pool] });`;
  stack.program(program() + named);
  await stack.mustUp();
  stack.program(program(`type: "clusterIP"`) + named);
  const byName = /POOL_IN_USE: IPPool shared cannot be replaced \(change of type\): .*::named/s;
  expect((await stack.pulumi("preview", "--stack", stack.name)).text).toMatch(byName);
  expect((await stack.up()).text).toMatch(byName);
  expect(await held()).toBeDefined();

  stack.program(program());
  await stack.mustUp();
  stack.program(program(`type: "clusterIP"`));
  expect((await shown(stack)).a).toBeDefined();
  await stack.mustUp();
  expect((await given(stack)).a).toBe("10.68.0.7");
  expect(await fsck()).toEqual([]);
});

test("a destroy whose end is not in the state is not a lost store: the same addresses are given again", async () => {
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

test("the option import is refused with a fix", async () => {
  const stack = await workspace.stack("imports");
  stack.program(`${POOL("10.65.0")} ${address("a", "", `{ import: "x" }`)}`);
  const { code, text } = await stack.pulumi("preview", "--stack", stack.name);
  expect(code).not.toBe(0);
  expect(text).toMatch(/IPReservation a: the option `import` does not work with this package\. Set `adopt: true`/);
});
