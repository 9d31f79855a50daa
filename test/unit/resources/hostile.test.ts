import { beforeEach, describe, expect, test } from "vitest";
import { z } from "zod";
import { parseRange } from "../../../provider/addressing/ip";
import { openIpam } from "../../../provider/ipam";
import { RunPlan } from "../../../provider/ipam/run-plan";
import type { Json, ValueRange } from "../../../provider/ipam/types";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import { describePool } from "../../../provider/pool-names";
import { resourceOf, resources } from "../../../provider/resources";
import { FakeFleet, fakeDependencies } from "../lifecycle/fake-fleet";

/** check refuses every input that goes into a command on a host, unless it is plain. */
const HOSTILE = {
  blank: "a b",
  quote: "a'b",
  "double quote": 'a"b',
  substitution: "$(touch /tmp/x)",
  backtick: "`id`",
  "newline and command": "a\nreboot",
  "carriage return": "a\rb",
  separator: "a;b",
  option: "--help",
  unicode: "brücke",
  "right-to-left": "a\u202eb",
  NUL: "a\0b",
  path: "../../etc/passwd",
  empty: "",
  "200 characters": "a".repeat(200),
};

const NETWORK = { networkName: "training", hubConnection: { host: "192.0.2.1" } };
const RUNNER = {
  network: { networkName: "training" },
  runnerName: "r1",
  connection: { host: "192.0.2.11" },
  hubConnection: { host: "192.0.2.1" },
};

const POOL = { poolName: "web", type: "container", ranges: ["198.51.100.0/24"] };
const ON_RUNNER = {
  networkName: "training",
  runnerName: "r1",
  subnets: ["10.128.64.0/18"],
  dockerNetwork: "kohakuriver-overlay",
};
const STATIC_IP = {
  pool: POOL,
  staticIpName: "front",
  attach: { networkName: "training", subnets: "10.128.0.0/12/6/14", bridgeName: "kohaku-overlay" },
  connection: { host: "192.0.2.1" },
  forwards: [{ port: 80, to: "10.128.64.10" }],
  preserveClientIp: true,
  runners: [{ networkName: "training", runnerName: "r1", subnets: ["10.128.64.0/18"] }],
  runnerConnections: [{ host: "192.0.2.11" }],
};

/** Valid inputs of each resource, with all objects and lists that texts can be in. */
const VALID: Record<string, Values> = {
  OverlayNetwork: NETWORK,
  RunnerSubnet: RUNNER,
  IPPool: { poolName: "web", ranges: ["198.51.100.0/24"] },
  IPReservation: { runner: ON_RUNNER },
  StaticIP: STATIC_IP,
};

interface SchemaNode {
  $ref?: string;
  type?: string;
  properties?: Record<string, SchemaNode>;
  items?: SchemaNode;
  prefixItems?: SchemaNode[];
  anyOf?: SchemaNode[];
  additionalProperties?: SchemaNode | boolean;
  $defs?: Record<string, SchemaNode>;
}

/** Paths of all texts that a schema accepts; `0` and `1` for the elements of a list, `*` for the values of a map. */
function textPaths(node: SchemaNode, root: SchemaNode): string[] {
  const below = (name: string, inner: SchemaNode): string[] =>
    textPaths(inner, root).map((path) => (path === "" ? name : `${name}.${path}`));
  const { $ref, type, properties = {}, items, prefixItems = [], anyOf = [], additionalProperties } = node;
  if ($ref) return textPaths(root.$defs![$ref.replace("#/$defs/", "")]!, root);
  return [
    ...new Set([
      ...(type === "string" ? [""] : []),
      ...Object.entries(properties).flatMap(([name, inner]) => below(name, inner)),
      ...(items ? ["0", "1"].flatMap((index) => below(index, items)) : []),
      ...prefixItems.flatMap((inner, index) => below(String(index), inner)),
      ...anyOf.flatMap((inner) => textPaths(inner, root)),
      ...(typeof additionalProperties === "object" ? below("*", additionalProperties) : []),
    ]),
  ];
}

/** Texts that go into no command on a host. Any other input of any resource is tested below. */
const NOT_IN_COMMANDS: [path: RegExp, why: string][] = [
  [/[cC]onnections?\.(.*\.)?(user|password|privateKey\w*|agentSocketPath|hostKey)$/, "for SSH on this machine"],
  [/^labels\.\*$/, "only in the store"],
  [/^(usedBy|sharingKey)$/, "only in the store"],
  [/^forwards\.\d\.name$/, "only in outputs"],
];

const inputsOf = (type: string): string[] => {
  const schema = z.toJSONSchema(resourceOf(type).inputs, { io: "input", unrepresentable: "any" }) as SchemaNode;
  return textPaths(schema, schema).filter((path) => !NOT_IN_COMMANDS.some(([excluded]) => excluded.test(path)));
};

const INPUTS = resources.map(({ type }): [type: string, given: Values, paths: string[]] => [
  type,
  VALID[type]!,
  inputsOf(type),
]);

test("every resource has valid inputs here, and texts to test", () => {
  expect(INPUTS.filter(([, given, paths]) => !given || paths.length === 0)).toEqual([]);
});

/**
 * DNS has longer names than these; they go to the resolver, and into no command. Names of pools are no part of a command
 * either. A runner without Docker has no Docker network.
 */
const isPlain = (path: string, kind: string): boolean =>
  (kind === "200 characters" && /\.host$|\.poolName$/.test(path)) ||
  (kind === "empty" && path.endsWith("dockerNetwork"));

/** Pools that a resource needs. */
const STANDS_ON: Record<string, string[]> = {
  RunnerSubnet: ["network/training"],
  IPReservation: ["runner/training/r1"],
  StaticIP: ["pool/web"],
};

let fleet: FakeFleet;
let pool: RunPlan;
let lifecycle: (type: string) => Lifecycle;

beforeEach(async () => {
  fleet = new FakeFleet();
  pool = new RunPlan(await openIpam("memory:", { offerTtl: 3600, quarantine: 0 }));
  lifecycle = (type) => new Lifecycle(resourceOf(type), fakeDependencies(fleet, pool));
});

/** A copy with `value` at this path. Lists grow to the length that it needs. */
function withValue<T>(values: T, [key, ...rest]: string[], value: string): T {
  if (key === undefined) return value as T;
  if (!/^\d+$/.test(key)) {
    const inner = (values as Values | undefined)?.[key];
    return { ...values, [key]: withValue(inner, rest, value) } as T;
  }
  const list = Array.isArray(values) ? [...values] : Array.from({ length: Number(key) + 1 }, () => values);
  list[Number(key)] = withValue(list[Number(key)], rest, value);
  return list as T;
}

const caller = (name: string) => ({ owner: `org/urn:pulumi:dev::p::overlay:index:X::${name}`, dryRun: false });

describe.each(INPUTS)("%s", (type, given, paths) => {
  test.each(paths)("%s is refused unless it is plain, and no host is contacted", async (path) => {
    for (const [kind, value] of Object.entries(HOSTILE)) {
      if (isPlain(path, kind)) continue;
      const { failures } = await lifecycle(type).check(
        caller("x"),
        undefined,
        withValue(given, path.split("."), value),
      );
      const refused = failures.map(({ path }) => path);
      // Of a list or a union the whole may be named.
      expect(
        refused.some((each) => path === each || path.startsWith(`${each}.`)),
        `${path}: ${kind}: ${refused}`,
      ).toBe(true);
    }
    expect(fleet.contacted).toEqual([]);
  });

  test("plain values pass, so the refusals above are because of the text", async () => {
    for (const name of STANDS_ON[type] ?? []) await open(STORED[name]!, { name });
    expect((await lifecycle(type).check(caller("x"), undefined, given)).failures).toEqual([]);
  });
});

test.each(["OverlayNetwork", "RunnerSubnet"])(
  "the name of a %s that defaults to its resource's name is checked, too",
  async (type) => {
    const { networkName: _, runnerName: __, ...given } = { ...NETWORK, ...RUNNER };
    const { network: ___, connection: ____, ...hub } = given;
    const { failures } = await lifecycle(type).check(caller("it's"), undefined, type === "RunnerSubnet" ? given : hub);
    expect(failures.map(({ path }) => path)).toEqual([type === "RunnerSubnet" ? "runnerName" : "networkName"]);
    expect(fleet.contacted).toEqual([]);
  },
);

/** Settings that another stack has written to a shared store. They can be anything. */
const settingsOfNetwork = {
  networkName: "training",
  subnets: "10.128.0.0/12/6/14",
  hubUnderlayIp: "192.0.2.1",
  vniBase: 100,
  vxlanPort: 4789,
  mtu: "auto",
  masquerade: true,
  devicePrefix: "vxkr",
  bridgeName: "kohaku-overlay",
  persist: true,
  hostAccess: ["tcp/22"],
  docker: { enabled: "auto", networkName: "kohakuriver-overlay", range: "1/4" },
  verify: true,
};
const STORED: Record<string, { settings: Values; ranges: ValueRange[]; kind: "id" | "address" }> = {
  "network/training": { settings: settingsOfNetwork, ranges: [{ first: 1n, last: 63n }], kind: "id" },
  "runner/training/r1": { settings: ON_RUNNER, ranges: [range("10.128.64.0/18")], kind: "address" },
  "pool/web": {
    settings: { ...POOL, addressSpace: "default", tenant: { org: "acme", project: "web" } },
    ranges: [range("198.51.100.0/24")],
    kind: "address",
  },
};

function range(cidr: string): ValueRange {
  return parseRange(cidr)!;
}

const open = ({ settings, ranges, kind }: (typeof STORED)[string], { name }: { name: string }) =>
  pool.claim({
    pool: `space/${name.replaceAll("/", "-")}`,
    owner: `evil/urn:pulumi:dev::p::overlay:index:X::${name}`,
    type: "X",
    values: kind === "id" ? [range("10.128.0.0/12")] : ranges, // of the addresses of its runners
    childPool: { name, kind, ranges, allocation: "lowest", data: { settings: settings as Json, hub: null } },
  });

/** Paths of all texts in these settings. */
const textsIn = (value: unknown): string[][] =>
  typeof value === "string"
    ? [[]]
    : Object.entries(value ?? {}).flatMap(([key, inner]) => textsIn(inner).map((path) => [key, ...path]));

const tenant = { org: "acme", project: "web" };
const BY_NAME: [type: string, stored: string, given: Values][] = [
  ["RunnerSubnet", "network/training", { ...RUNNER, network: "training" }],
  ["IPPool", "pool/web", { poolName: "part", parent: "web", prefixLength: 28, tenant }],
  ["IPReservation", "runner/training/r1", { runner: "training/r1" }],
  ["IPReservation", "network/training", { network: "training" }],
  ["IPReservation", "pool/web", { pool: "web", tenant }],
  ["StaticIP", "pool/web", { ...STATIC_IP, pool: "web", tenant }],
  ["StaticIP", "network/training", { ...STATIC_IP, attach: "training" }],
  ["StaticIP", "runner/training/r1", { ...STATIC_IP, attach: "training/r1", runners: [], runnerConnections: [] }],
  ["StaticIP", "runner/training/r1", { ...STATIC_IP, runners: ["training/r1"] }],
];

describe.each(BY_NAME)("%s by name, from %s", (type, stored, given) => {
  const paths = textsIn(STORED[stored]!.settings).map((path) => path.join("."));
  test.each(paths)("%s is refused unless it is plain, with the row that has it", async (path) => {
    for (const [kind, value] of Object.entries(HOSTILE)) {
      if (isPlain(path, kind)) continue;
      pool = new RunPlan(await openIpam("memory:", { offerTtl: 3600, quarantine: 0 }));
      const { settings, ...rest } = STORED[stored]!;
      const written = open({ ...rest, settings: withValue(settings, path.split("."), value) }, { name: stored });
      // Control characters are refused on writing; hostile-store.test.ts tests rows of other programs.
      if (/\p{Cc}/u.test(value)) {
        await expect(written, `${path}: ${kind}`).rejects.toThrow(/^INPUT_INVALID/);
        continue;
      }
      await written;
      const { failures } = await lifecycle(type).check(caller("x"), undefined, given);
      expect(failures.map(({ reason }) => reason).join(), `${path}: ${kind}`).toMatch(
        new RegExp(`^STORE_CORRUPT: .*${describePool(stored)}`, "s"),
      );
    }
    expect(fleet.contacted).toEqual([]);
  });

  test("plain settings pass, so the refusals above are because of the text", async () => {
    for (const name of new Set([stored, ...(STANDS_ON[type] ?? [])])) await open(STORED[name]!, { name });
    expect((await lifecycle(type).check(caller("x"), undefined, given)).failures).toEqual([]);
  });

  test("settings of another pool are refused", async () => {
    const { settings, ...rest } = STORED[stored]!;
    const renamed = { ...settings, ...("poolName" in settings ? { poolName: "other" } : { networkName: "other" }) };
    await open({ ...rest, settings: renamed }, { name: stored });
    const { failures } = await lifecycle(type).check(caller("x"), undefined, given);
    expect(failures.map(({ reason }) => reason).join()).toMatch(/^STORE_CORRUPT: .*they are those of /);
  });
});

test("a reservation on any runner is not placed on one whose settings are not plain", async () => {
  const { settings, ...rest } = STORED["runner/training/r1"]!;
  await open(STORED["network/training"]!, { name: "network/training" });
  const privileged = { ...settings, dockerNetwork: "x --privileged -v /:/host" };
  await open({ ...rest, settings: privileged }, { name: "runner/training/r1" });
  const { failures } = await lifecycle("IPReservation").check(caller("x"), undefined, { network: "training" });
  expect(failures.map(({ reason }) => reason).join()).toMatch(/^STORE_CORRUPT: .*dockerNetwork/);
});
