import * as pulumi from "@pulumi/pulumi";
import { afterEach, beforeAll, expect, test } from "vitest";
import { IPReservation } from "../../sdk";

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
