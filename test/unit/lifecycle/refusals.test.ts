import { beforeAll, beforeEach, describe, expect, test } from "vitest";
import { z } from "zod";
import { findSpec } from "../../../provider/ipam/interface";
import type { Values } from "../../../provider/lifecycle/values";
import { resources } from "../../../provider/resources";
import { ownerOf, Stage } from "./stage";

/** Errors of check for invalid inputs: property, value and what is allowed, and never a secret. */
let stage: Stage;

beforeAll(async () => {
  stage = await Stage.up();
  await stage.network();
});

const POOL = { poolName: "p", addressSpace: "default", type: "container", ranges: ["10.0.0.0/24"] };
const RUNNER = { networkName: "training", runnerName: "r1", subnets: ["10.128.64.0/18"], dockerNetwork: "" };
const GOOD: Record<string, Values> = {
  OverlayNetwork: { hubConnection: { host: "192.0.2.9" }, subnets: "10.16.0.0/12/6/14" },
  RunnerSubnet: { network: "training", connection: { host: "192.0.2.11" }, hubConnection: { host: "192.0.2.1" } },
  IPPool: { ranges: ["10.0.0.0/24"] },
  IPReservation: { runner: RUNNER },
  StaticIP: {
    pool: POOL,
    attach: { networkName: "training", subnets: "10.128.0.0/12/6/14", bridgeName: "overlay-br" },
    connection: { host: "192.0.2.1" },
  },
};

test("the tunnel's device on a runner has a fixed name with WireGuard", async () => {
  const { settings } = (await findSpec(stage.pool.ipam, "network/training"))!.data as unknown as { settings: Values };
  const network = { ...settings, tunnel: "wireguard" };
  expect(await refusals("RunnerSubnet", { network, runnerDevice: "vxlan0" })).toEqual([
    "INPUT_INVALID: runnerDevice cannot be chosen with tunnel wireguard: it is ovlW0.",
  ]);
});

const refusals = async (type: string, news: Values): Promise<string[]> =>
  (await stage.check(type, "x", { ...GOOD[type], ...news }, undefined, true)).failures.map(({ reason }) => reason);

test.each<[code: string, type: string, news: Values, reason: string]>([
  [
    "invalid_type",
    "OverlayNetwork",
    { vxlanPort: "4789" },
    'vxlanPort must be a whole number from 1 to 65535; it is "4789".',
  ],
  [
    "invalid_type",
    "OverlayNetwork",
    { vxlanPort: null },
    "vxlanPort must be a whole number from 1 to 65535; it is null.",
  ],
  [
    "invalid_type",
    "OverlayNetwork",
    { vxlanPort: 1.5 },
    "vxlanPort must be a whole number from 1 to 65535; it is 1.5.",
  ],
  ["invalid_type", "OverlayNetwork", { verify: "yes" }, 'verify must be true or false; it is "yes".'],
  ["invalid_type", "OverlayNetwork", { networkName: 5 }, "networkName must be a string; it is 5."],
  ["invalid_type", "OverlayNetwork", { docker: "off" }, 'docker must be an object; it is "off".'],
  ["invalid_type", "OverlayNetwork", { labels: { team: 7 } }, "labels.team must be a string; it is 7."],
  [
    "invalid_type",
    "IPPool",
    { ranges: "10.0.0.0/24" },
    'ranges must be a list with at least 1 entry; it is "10.0.0.0/24".',
  ],
  [
    "invalid_type",
    "RunnerSubnet",
    { network: 5 },
    "network must be of type OverlayNetwork, or the name of one; it is 5.",
  ],
  [
    "missing",
    "RunnerSubnet",
    { network: undefined },
    "network is missing: it must be of type OverlayNetwork, or the name of one.",
  ],
  [
    "missing",
    "OverlayNetwork",
    { hubConnection: undefined },
    "hubConnection is missing: it must be an object with `host`.",
  ],
  ["missing", "OverlayNetwork", { hubConnection: {} }, "hubConnection.host is missing: it must be a string."],
  ["missing", "StaticIP", { forwards: [{ port: 80 }] }, "forwards[0].to is missing: it must be a string."],
  ["too_big", "OverlayNetwork", { vxlanPort: 70000 }, "vxlanPort must be a whole number from 1 to 65535; it is 70000."],
  [
    "too_small",
    "OverlayNetwork",
    { inactiveAfter: 5 },
    "inactiveAfter must be a whole number of at least 60; it is 5.",
  ],
  ["too_small", "IPPool", { ranges: [] }, "ranges must be a list with at least 1 entry; it is an empty list."],
  ["too_small", "StaticIP", { sharingKey: "" }, 'sharingKey must be a string of 1 to 253 characters; it is "".'],
  [
    "too_big",
    "StaticIP",
    { forwards: [{ port: 80, to: "10.0.0.1", name: "x".repeat(99) }] },
    `forwards[0].name must be a string of at most 63 characters; it is "${"x".repeat(76)}…".`,
  ],
  [
    "invalid_value",
    "IPPool",
    { allocation: "lowset" },
    'allocation must be `hashed`, `lowest`, `random` or `external`; it is "lowset".',
  ],
  [
    "invalid_union",
    "OverlayNetwork",
    { mtu: 70000 },
    "mtu must be `auto` or a whole number from 576 to 65000; it is 70000.",
  ],
  ["invalid_union", "IPReservation", { ttl: 59 }, "ttl must be `true` or a whole number from 60 to 86400; it is 59."],
  [
    "invalid_union",
    "OverlayNetwork",
    { subnets: 10 },
    "subnets must be BASE/PREFIX/NODE_BITS/SUBNET_BITS, or a pair of such; it is 10.",
  ],
  [
    "invalid_format",
    "OverlayNetwork",
    { devicePrefix: "vx-prefix-of-23-letters" },
    `devicePrefix must be a letter followed by at most 10 letters, digits, '_' or '-'; it is "vx-prefix-of-23-letters".`,
  ],
  [
    "invalid_format",
    "OverlayNetwork",
    { devicePrefix: "1x" },
    `devicePrefix must be a letter followed by at most 10 letters, digits, '_' or '-'; it is "1x".`,
  ],
  ["custom", "IPReservation", { ip: "10.0.0.300" }, 'ip must be an IP address; it is "10.0.0.300".'],
  [
    "custom",
    "IPPool",
    { ranges: ["10.0.0.1/24"] },
    'ranges[0] must be a CIDR without host bits, an address, or FIRST-LAST in one family; it is "10.0.0.1/24".',
  ],
  [
    "custom",
    "OverlayNetwork",
    { docker: { range: "1/3" } },
    'docker.range must be a share: 1/2, 1/4, 1/8 …; it is "1/3".',
  ],
  [
    "custom",
    "OverlayNetwork",
    { docker: { networkName: "host" } },
    'docker.networkName must be none of the names that Docker keeps for itself (bridge, host, none, default); it is "host".',
  ],
  [
    "control characters",
    "IPPool",
    { allocation: "\u001b[2J\u202e" },
    'allocation must be `hashed`, `lowest`, `random` or `external`; it is "\\u001b[2J\\u202e".',
  ],
  ["unrecognized_keys", "OverlayNetwork", { vxlanport: 1 }, "unknown property `vxlanport`: did you mean `vxlanPort`?"],
  [
    "unrecognized_keys",
    "OverlayNetwork",
    { docker: { enable: "off" } },
    "unknown property `docker.enable`: did you mean `enabled`?",
  ],
  [
    "unrecognized_keys",
    "IPPool",
    { quota: { colour: 1 } },
    "unknown property `quota.colour`. Known properties: `maxIps`, `maxReservations`.",
  ],
  [
    "unrecognized_keys",
    "StaticIP",
    { forwards: [{ port: 80, to: "10.0.0.1", prot: "tcp" }] },
    "unknown property `forwards[0].prot`: did you mean `port`?",
  ],
  [
    "impossible",
    "OverlayNetwork",
    { vniBase: 16777200 },
    "vniBase must be at most 16777152: the VNI of the last runner would be 16777263, and VNIs end at 16777215.",
  ],
])("%s: %s %j", async (_code, type, news, reason) => {
  expect(await refusals(type, news)).toEqual([`INPUT_INVALID: ${reason}`]);
});

test("an error with a code of its own names the property, too", async () => {
  expect(await refusals("OverlayNetwork", { subnets: "10.0.0.1/8/8/16" })).toEqual([
    expect.stringMatching(/^SUBNET_NOT_ALIGNED: subnets: /),
  ]);
  expect(await refusals("OverlayNetwork", { subnets: ["10.0.0.0/8/8/16", "fd00::/200/1/1"] })).toEqual([
    expect.stringMatching(/^SUBNET_\w+: subnets\[1\]: /),
  ]);
});

type JsonSchema = { properties?: Record<string, JsonSchema>; $ref?: string; items?: JsonSchema };

/** Every input of a resource, and every property of the objects and lists among them. */
function pathsOf(
  root: JsonSchema & { $defs?: Record<string, JsonSchema> },
  at: JsonSchema = root,
  to: string[] = [],
): string[][] {
  const node = at.$ref ? root.$defs![at.$ref.slice("#/$defs/".length)]! : at;
  const children = Object.entries({ ...node.properties, ...(node.items && { 0: node.items }) });
  return children.flatMap(([key, child]) => [[...to, key], ...pathsOf(root, child, [...to, key])]);
}

const put = (values: unknown, [key, ...rest]: string[], value: unknown): unknown => {
  const inside = rest.length > 0 ? put((values as Values | undefined)?.[key!], rest, value) : value;
  return key === "0" ? [inside] : { ...(values as Values), [key!]: inside };
};

const WRONG = [null, "", "\n", "x y", -1, 1.5, 2 ** 60, true, [], [null], {}, { colour: "red" }];
/** Words of zod, and of JavaScript. */
const FOREIGN = /Invalid|xpected|eceived|Too (big|small)|Unrecognized|undefined|NaN|\[object|another value/;

describe.each(resources.map((def) => [def.type, def] as const))("%s", (type, def) => {
  const paths = pathsOf(z.toJSONSchema(def.inputs, { io: "input", unrepresentable: "any" }) as JsonSchema);

  test("every error has our own words, a code and the path", async () => {
    for (const path of paths) {
      for (const wrong of WRONG) {
        const { failures } = await stage.check(type, "x", put(GOOD[type], path, wrong) as Values, undefined, true);
        for (const failure of failures) {
          const where = `${path.join(".")} = ${JSON.stringify(wrong)}: ${failure.reason}`;
          expect(failure.reason, where).toMatch(/^[A-Z_]+: .*[.?]$/s);
          expect(failure.reason, where).not.toMatch(FOREIGN);
          const named = failure.path.replace(/\.(\d+)/g, "[$1]");
          if (named) expect(failure.reason, where).toContain(named.split(".").at(-1));
        }
      }
    }
  });

  test("a property that can hold a secret is never named to Pulumi, and no value in it is shown", async () => {
    const secrets = def.secrets.filter((key) => key in def.inputs.shape);
    const SECRET = "hunter2";
    const inside = paths.filter(([key, ...rest]) => secrets.includes(key!) && rest.at(-1) !== "0");
    for (const path of inside) {
      for (const wrong of [SECRET, 7, [SECRET], { [`x${"y".repeat(9)}`]: SECRET }, { host: `${SECRET}\n` }]) {
        const beside = put(GOOD[type], [...path.slice(0, -1), path.length > 1 ? "password" : path[0]!], SECRET);
        const news = put(path.length > 1 ? beside : GOOD[type], path, wrong) as Values;
        const { failures } = await stage.check(type, "x", news, undefined, true);
        for (const { property, path: at, reason } of failures) {
          expect(secrets, `${path.join(".")}: ${reason}`).not.toContain(property.split(".")[0]);
          if (secrets.includes(at.split(".")[0]!)) expect(property).toBe("");
          expect(reason).not.toContain(SECRET);
        }
      }
    }
  });
});

test.each<[what: string, connection: unknown, reason: RegExp]>([
  [
    "an unknown key",
    { host: "h", password: "hunter2", prot: 22 },
    /^INPUT_INVALID: unknown property `hubConnection\.prot`: did you mean `port`\?$/,
  ],
  [
    "a secret as the name of a key",
    { host: "h", hunter2: "password" },
    /^INPUT_INVALID: unknown property in `hubConnection`\. Its name is not shown, as it may be a secret\. Known properties: `host`/,
  ],
  [
    "a wrong type",
    "hunter2",
    /^INPUT_INVALID: hubConnection must be an object with `host`\. Its value is not shown, as it may be a secret\.$/,
  ],
  [
    "a wrong type inside",
    { host: "h", password: ["hunter2"] },
    /^INPUT_INVALID: hubConnection\.password must be a string\. Its value is not shown/,
  ],
  ["no host", { password: "hunter2" }, /^INPUT_INVALID: hubConnection\.host is missing/],
  [
    "a secret as the host",
    { host: "hunter2 " },
    /^INPUT_INVALID: hubConnection\.host must be a host name or an IP address\. Its value is not shown/,
  ],
  [
    "the port of a proxy",
    { host: "h", proxy: { host: "h", password: "hunter2", port: 0 } },
    /^INPUT_INVALID: hubConnection\.proxy\.port must be a whole number from 1 to 65535\. Its/,
  ],
  [
    "an unknown key in a proxy",
    { host: "h", proxy: { host: "h", pasword: "hunter2" } },
    /^INPUT_INVALID: unknown property `hubConnection\.proxy\.pasword`: did you mean `password`\?$/,
  ],
])("%s in a connection is reported on the resource", async (_what, hubConnection, reason) => {
  const { failures } = await stage.check("OverlayNetwork", "x", { hubConnection }, undefined, true);
  expect(failures).toEqual([{ property: "", path: expect.any(String), reason: expect.stringMatching(reason) }]);
  expect(JSON.stringify(failures)).not.toContain("hunter2");
});

test("an input that the program marked as secret is treated like one that always is", async () => {
  const caller = {
    owner: "org/urn:pulumi:dev::p::overlay:index:OverlayNetwork::x",
    dryRun: true,
    secretInputs: ["mtu", "vniBase"],
  };
  const check = (news: Values) =>
    stage.of("OverlayNetwork").check(caller, undefined, { ...GOOD.OverlayNetwork, ...news });
  expect((await check({ mtu: "hunter2" })).failures).toEqual([
    {
      property: "",
      path: "mtu",
      reason: expect.stringMatching(/^INPUT_INVALID: mtu must be .*\. Its value is not shown/),
    },
  ]);
  expect((await check({ vniBase: 16777200 })).failures).toEqual([
    { property: "", path: "vniBase", reason: "INPUT_INVALID: vniBase does not fit the other inputs." },
  ]);
  expect((await check({ vxlanPort: 0 })).failures).toMatchObject([{ property: "vxlanPort" }]);
});

describe("a refusal that names what works", () => {
  const runner = (host: string) => ({
    ...{ network: "training", connection: { host, privateKey: "hunter2" } },
    hubConnection: { host: "192.0.2.1" },
  });

  let fresh: Stage;
  beforeEach(async () => {
    fresh = await Stage.up();
  });

  test("the hub as a runner, in a connection that is secret", async () => {
    await fresh.network();
    const secretInputs = ["connection", "hubConnection"];
    const caller = { owner: ownerOf("RunnerSubnet", "r1"), dryRun: true, secretInputs };
    const { failures } = await fresh.of("RunnerSubnet").check(caller, undefined, runner("192.0.2.1"));
    expect(failures).toMatchObject([
      { reason: "INPUT_INVALID: connection.host is the network's hub; a runner must be another host." },
    ]);
  });

  test.each([
    [{}, "With the 50 bytes of vxlan that exceeds the 1500", "Set mtu to 1450 or less"],
    [{ tunnel: "wireguard" }, "With the 60 bytes of wireguard that exceeds the 1500", "Set mtu to 1440 or less"],
  ])("an MTU above the underlay's, before the hub is changed: %j", async (inputs, what, fix) => {
    const message = await fresh.network("training", { ...inputs, mtu: 1460 }).then(() => "made", String);
    expect(message).toContain("MTU_TOO_LARGE: Network training would have an MTU of 1460.");
    expect(message).toContain(what);
    expect(message).toContain(fix);
    expect(fresh.fleet.takeWrites()).toEqual([]);
  });

  test("two runners of a network on one host", async () => {
    await fresh.network();
    await fresh.preview("RunnerSubnet", "r1", runner("192.0.2.11"));
    expect(await fresh.refusal("RunnerSubnet", "r2", runner("192.0.2.11"))).toMatch(
      /^DEVICE_FOREIGN: Host 192\.0\.2\.11 is a runner of network training already: .*::r1 \(offered\)\. A host can be one runner of a network\. Give this one another host/,
    );
  });

  test("two networks of one program with overlapping ranges", async () => {
    await fresh.preview("OverlayNetwork", "a", { hubConnection: { host: "192.0.2.1" } });
    expect(await fresh.refusal("OverlayNetwork", "b", { hubConnection: { host: "192.0.2.2" } })).toMatch(
      /^POOL_OVERLAP: .* promised to .*::a for network a\. Give one of the two another range\.$/,
    );
  });
});

/** A program that passes a connection where something else belongs. */
const CONNECTION = { host: "192.0.2.9", password: "hunter2", proxy: { host: "h", privateKey: "hunter2" } };

describe.each(resources)("$type", ({ type, inputs }) => {
  test.each(Object.keys(inputs.shape))("a connection in the place of %s is not named to Pulumi", async (key) => {
    for (const wrong of [CONNECTION, [CONNECTION], [[CONNECTION]], { hubConnection: CONNECTION }]) {
      const { failures } = await stage.check(type, "x", { ...GOOD[type], [key]: wrong }, undefined, true);
      expect(failures.filter(({ property }) => property === key)).toEqual([]);
      expect(JSON.stringify(failures)).not.toContain("hunter2");
    }
  });
});

test.each<[type: string, input: string, value: unknown, reason: string]>([
  [
    "OverlayNetwork",
    "subnets",
    "hunter2/12/6/14",
    "SUBNET_FORMAT: subnets: Its value is not shown, as it may be a secret.",
  ],
  ["RunnerSubnet", "network", "hunter2", "POOL_NOT_FOUND: network: Its value is not shown, as it may be a secret. "],
  ["IPReservation", "pool", "hunter2", "POOL_NOT_FOUND: pool: Its value is not shown, as it may be a secret. "],
  ["StaticIP", "runners", ["hunter2"], "POOL_NOT_FOUND: runners: Its value is not shown, as it may be a secret. "],
])("%s: an error of its own about a secret %s does not show it", async (type, input, value, reason) => {
  const caller = { owner: `org/urn:pulumi:dev::p::overlay:index:${type}::x`, dryRun: true, secretInputs: [input] };
  const { failures } = await stage.of(type).check(caller, undefined, { ...GOOD[type], [input]: value });
  expect(failures).toEqual([{ property: "", path: expect.any(String), reason: expect.stringContaining(reason) }]);
  expect(JSON.stringify(failures)).not.toContain("hunter2");
});
