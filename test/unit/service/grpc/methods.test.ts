import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { ACCESS_SCOPES } from "../../../../provider/ipam/admin";
import type { Event, Lease } from "../../../../provider/ipam/types";
import { createPoolInput } from "../../../../provider/reservations";
import { PLACEMENTS } from "../../../../provider/resources/placement";
import { enumNames, fieldNames, OVERLAY_PROTO, SERVICE_NAMES, serviceDefinition } from "../../../../service/grpc/api";
import { enumName } from "../../../../service/grpc/messages";
import { METHODS } from "../../../../service/grpc/table";

/** The .proto file and the table of methods say the same. */
const text = readFileSync(OVERLAY_PROTO, "utf8");
const page = readFileSync("docs/grpc.md", "utf8");
const methods = SERVICE_NAMES.flatMap((service) =>
  Object.entries(serviceDefinition(service)).map(([name, definition]) => ({
    name,
    definition,
    method: METHODS[service][name],
  })),
);

test("every service of the file is served, and every method in the table is in the file", () => {
  expect([...text.matchAll(/^service (\w+)/gm)].map(([, name]) => name)).toEqual([...SERVICE_NAMES]);
  const declared = [...text.matchAll(/^ {2}rpc (\w+)/gm)].map(([, name]) => name);
  expect(Object.values(METHODS).flatMap((table) => Object.keys(table))).toEqual(declared);
});

describe.each(methods)("$name", ({ name, definition, method }) => {
  test("has a scope, which the file names", () => {
    expect(ACCESS_SCOPES).toContain(method?.scope);
    const [, comment] = new RegExp(`((?: {2}//.*\\n)+) {2}rpc ${name}\\(`).exec(text)!;
    expect(comment!.replace(/\n {2}\/\/ /g, " ")).toContain(`Needs the scope \`${method!.scope}\`.`);
  });

  test("is in docs/grpc.md with that scope", () => {
    const row = page.split("\n").find((line) => line.startsWith("| ") && new RegExp(`\\b${name}\\b.* \\| `).test(line));
    expect(row?.split("|")[2]?.trim()).toBe(method!.scope);
  });

  test("has a schema with the fields of its request", () => {
    expect(Object.keys(method!.request.shape).sort()).toEqual(fieldNames(definition).sort());
  });

  test("is a stream where the file says so", () => {
    expect("stream" in method!).toBe(definition.responseStream);
  });
});

test("every service, method, message, field, enum and value has a comment", () => {
  const lines = text.split("\n");
  const isDeclaration = (line: string) => /^\s*(service|rpc|message|enum) \w|^ +[\w.<>, ]+ = \d+;$/.test(line);
  const bare = lines.filter((line, i) => isDeclaration(line) && !/^\s*\/\//.test(lines[i - 1]!));
  expect(bare).toEqual([]);
  expect(lines.filter(isDeclaration).length).toBeGreaterThan(150);
});

const STATES: Record<Lease["state"], true> = {
  offered: true,
  reserved: true,
  used: true,
  quarantined: true,
  ended: true,
};
const EVENTS: Record<Event["what"], true> = {
  claimed: true,
  renewed: true,
  used: true,
  unused: true,
  amended: true,
  renamed: true,
  released: true,
  expired: true,
  reclaimed: true,
  "handed over": true,
  imported: true,
};

test.each([
  ["PoolType", "POOL_TYPE", createPoolInput.shape.type.unwrap().options],
  ["AllocationPolicy", "ALLOCATION_POLICY", createPoolInput.shape.allocation.unwrap().options],
  ["Placement", "PLACEMENT", PLACEMENTS],
  ["LeaseState", "LEASE_STATE", Object.keys(STATES)],
  ["EventKind", "EVENT_KIND", Object.keys(EVENTS)],
  ["TokenCheck", "TOKEN_CHECK", ["store", "signature"]],
])("enum %s has all values", (name, prefix, values) => {
  const expected = [`${prefix}_UNSPECIFIED`, ...values.map((value) => enumName(prefix, value))];
  expect(enumNames(name).sort()).toEqual(expected.sort());
});
