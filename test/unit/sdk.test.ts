import * as pulumi from "@pulumi/pulumi";
import { afterEach, beforeAll, expect, test } from "vitest";
import { IPReservation, RunnerSubnet } from "../../sdk";

beforeAll(() =>
  pulumi.runtime.setMocks(
    { newResource: ({ name, inputs }) => ({ id: name, state: inputs }), call: () => ({}) },
    "project",
    "stack",
    false,
    "organization",
  ),
);

interface Owned {
  owner: pulumi.Output<string>;
}

const { prepareStackTrace, stackTraceLimit } = Error;
afterEach(() => {
  Error.prepareStackTrace = prepareStackTrace;
});

test("a resource costs no stack trace for each of its properties", () => {
  let traces = 0;
  Error.prepareStackTrace = (error, frames) => {
    if (frames.length > 0) traces++;
    return String(error);
  };
  const ip = new IPReservation("ip", { pool: "public" });
  expect(traces).toBeLessThan(Object.keys(ip).length);
  expect(Error.stackTraceLimit).toBe(stackTraceLimit);
});

test("the error of a resource that cannot be constructed has its place in the program", () => {
  let error: Error | undefined;
  try {
    new IPReservation("", { pool: "public" });
  } catch (caught) {
    error = caught as Error;
  }
  expect(error?.stack).toContain("sdk.test.ts");
  expect(Error.stackTraceLimit).toBe(stackTraceLimit);
});

test("two resources in one component do not wait for each other", async () => {
  const pair = new pulumi.ComponentResource("test:index:Pair", "pair");
  const owners = ["a", "b"].map((name) => {
    const { owner } = new IPReservation(name, { pool: "public" }, { parent: pair }) as unknown as Owned;
    return new Promise((resolve) => owner.apply(resolve));
  });
  expect(await Promise.all(owners)).toEqual(
    ["a", "b"].map(
      (name) => `organization/urn:pulumi:stack::project::test:index:Pair$overlay:index:IPReservation::${name}`,
    ),
  );
});

test("what is shown of a connection is as secret as the program made it", async () => {
  const proxy = { host: "jump", port: 2222, password: "no" };
  const connection = { host: pulumi.secret("10.0.0.1"), user: "ops", proxy, privateKey: pulumi.secret("key") };
  const hubConnection = pulumi.secret({ host: "10.0.0.2" });
  const runner = new RunnerSubnet("r1", { network: "training", connection, hubConnection });
  const shown: pulumi.Output<unknown>[] = [runner.host, runner.user, runner.port, runner.jumpHost, runner.hubHost];
  expect(await Promise.all(shown.map((output) => pulumi.isSecret(output)))).toEqual([true, false, false, false, true]);
  const values = new Promise((resolve) => pulumi.all(shown).apply(resolve));
  expect(await values).toEqual(["10.0.0.1", "ops", undefined, "jump:2222", "10.0.0.2"]);
});
