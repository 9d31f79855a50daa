import { stat } from "node:fs/promises";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import * as pulumi from "@pulumi/pulumi";
import { beforeEach, expect, test } from "vitest";
import { IPReservation, RunnerSubnet } from "../../sdk";

/** How the SDK describes the program to the provider: the same for all resources of a run. */

type Described = Record<string, { program: unknown; declared: unknown }>;
let described: Described;

/** A run of Pulumi. In a preview, outputs of the pool are unknown, and Pulumi does not run what is applied to them. */
beforeEach(() => startRun());

function startRun(): void {
  described = {};
  const of = described;
  const newResource = ({ name, inputs: { program, declared, ...state } }: pulumi.runtime.MockResourceArgs) => {
    of[name] = { program, declared };
    return { id: name, state };
  };
  pulumi.runtime.setMocks({ newResource, call: () => ({}) }, "project", "stack", false, "organization");
}

const address = (name: string, ip?: pulumi.Input<string>) =>
  new IPReservation(name, { pool: "public", ...(ip !== undefined && { ip }) });

async function run(declare: () => Promise<void> | void): Promise<Described> {
  startRun();
  const of = described;
  await declare();
  await sleep(20);
  return of;
}

const programsOf = (of: Described): unknown[] => [...new Set(Object.values(of).map(({ program }) => program))];

test("a program has one hash, whatever it declares after an await", async () => {
  const first = await run(() => {
    address("a");
    address("b");
  });
  const later = await run(async () => {
    address("a");
    address("b");
    await Promise.all(
      ["c", "d"].map(async (name) => {
        await stat(__filename);
        address(name, "10.0.0.9");
      }),
    );
    await nextTurn();
    address("e");
  });
  expect(Object.keys(later)).toHaveLength(5);
  expect(programsOf(later)).toEqual([expect.stringMatching(/^[0-9a-f]{8}$/)]);
  expect(programsOf(later)).toEqual(programsOf(first));
});

test("it is the same whether an apply runs, as in up, or not, as in preview", async () => {
  const declare = (isUp: boolean) => async () => {
    const a = address("a");
    if (isUp) a.urn.apply(() => address("in-apply"));
    await new Promise((resolve) => a.urn.apply(resolve));
    await nextTurn();
    address("z");
  };
  const [preview, up] = [await run(declare(false)), await run(declare(true))];
  expect(Object.keys(up).sort()).toEqual(["a", "in-apply", "z"]);
  expect([programsOf(preview), programsOf(up)]).toEqual([programsOf(up).slice(0, 1), programsOf(preview).slice(0, 1)]);
});

test("a read that ends while the program is busy does not belong to its first turn", async () => {
  const declare = (milliseconds: number) => async () => {
    const read = stat(__filename);
    address("a");
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
    await read;
    address("z");
  };
  expect(programsOf(await run(declare(100)))).toEqual(programsOf(await run(() => void address("a"))));
});

test("what a promise that is settled already declares belongs to the first turn, also of a program that a callback starts", async () => {
  const declare = async (more: string[]) => {
    address("a");
    for (const name of more) {
      await new Promise<void>((resolve) => pulumi.output(name).apply(() => resolve()));
      address(name);
    }
  };
  const inCallback = (more: string[]) => () =>
    new Promise<void>((resolve, reject) => setTimeout(() => declare(more).then(resolve, reject)));
  const [one, two] = [await run(inCallback(["b"])), await run(inCallback(["b", "c"]))];
  expect(programsOf(two)).toHaveLength(1);
  expect(programsOf(two)).not.toEqual(programsOf(one));
});

test("two runs in one process, as with the Automation API, are two programs", async () => {
  const [one, two] = [await run(() => void address("a")), await run(() => void address("b", "10.0.0.2"))];
  expect(programsOf(two)).not.toEqual(programsOf(one));
  expect([one.a?.declared, two.b?.declared]).toEqual([undefined, expect.stringMatching(/^[0-9a-f]{8}=10\.0\.0\.2$/)]);
});

test("the requested values of the first turn go to every resource", async () => {
  const of = await run(async () => {
    address("a");
    address("b", "10.0.0.2");
    address("c", pulumi.output("10.0.0.3"));
    await nextTurn();
    address("d", "10.0.0.4");
  });
  const texts = Object.values(of).map(({ declared }) => String(declared).replaceAll(/[0-9a-f]{8}/g, "HASH"));
  expect(Object.keys(of).sort()).toEqual(["a", "b", "c", "d"]);
  expect(new Set(texts).size).toBe(1);
  expect(texts[0]!.split(" ").sort()).toEqual(["HASH=10.0.0.2", "HASH=?"]);
});

test.each([
  [{ "overlay:stoer": "sqlite:x" }, "SETTING_INVALID: There is no setting overlay:stoer. Did you mean overlay:store?"],
  [
    { "overlay:colour": "red" },
    "SETTING_INVALID: There is no setting overlay:colour. Known settings: store, storeToken,",
  ],
])("a setting that does not exist is refused: %o", (config, error) => {
  pulumi.runtime.setAllConfig(config);
  expect(() => address("a")).toThrow(error);
  pulumi.runtime.setAllConfig({ "overlay:store": "sqlite:x", "project:stoer": "of the program" });
  expect(() => address("a")).not.toThrow();
  pulumi.runtime.setAllConfig({});
});

test("a runner names those that are declared before it for its network, under any parent, without an id", async () => {
  const earlier: Record<string, unknown> = {};
  const newResource = ({ name, inputs }: pulumi.runtime.MockResourceArgs) => {
    earlier[name] = inputs.earlier;
    return { id: name, state: {} };
  };
  pulumi.runtime.setMocks({ newResource, call: () => ({}) }, "project", "stack", false, "organization");
  const runner = (name: string, args: object = {}, opts: pulumi.CustomResourceOptions = {}) => {
    const connection = { host: name };
    return new RunnerSubnet(name, { network: "training", connection, hubConnection: connection, ...args }, opts);
  };
  runner("r1");
  runner("other", { network: "other" });
  runner("r2", { runnerId: 7 });
  const node = (name: string) => new pulumi.ComponentResource("test:index:Node", name);
  runner("inner", {}, { parent: node("a"), aliases: [{ name: "old" }] });
  runner("r3", {}, { parent: node("b") });
  runner("r4");
  await sleep(20);
  const [outer, inner] = ["overlay:index:RunnerSubnet", "test:index:Node$overlay:index:RunnerSubnet"];
  expect(earlier).toMatchObject({
    r1: [],
    other: [],
    inner: [[`${outer}::r1`]],
    r3: [[`${outer}::r1`], ["inner", "old"]],
    r4: [["r1"], [`${inner}::inner`, `${inner}::old`], [`${inner}::r3`]],
  });
});

test("runners of a component that waits for a later one are registered", async () => {
  const registered: string[] = [];
  const newResource = ({ name }: pulumi.runtime.MockResourceArgs) => {
    registered.push(name);
    return { id: name, state: {} };
  };
  pulumi.runtime.setMocks({ newResource, call: () => ({}) }, "project", "stack", false, "organization");
  const site = (name: string, opts: pulumi.ComponentResourceOptions = {}) =>
    new pulumi.ComponentResource("test:index:Site", name, {}, opts);
  const runner = (name: string, parent: pulumi.Resource) =>
    new RunnerSubnet(
      name,
      { network: "training", connection: { host: name }, hubConnection: { host: "h" } },
      { parent },
    );
  const one = site("one");
  const two = site("two", { dependsOn: one });
  runner("b", two);
  runner("a", one);
  await sleep(50);
  expect(registered.sort()).toEqual(["a", "b", "one", "two"]);
});
