import { beforeEach, describe, expect, test } from "vitest";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import { openPool } from "../../../provider/pool";
import { resourceOf } from "../../../provider/resources";
import { FakeFleet, worldOf } from "../lifecycle/fake-fleet";

/** Everything that users write and that goes into a command on a machine is refused by check unless it is plain. */
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

const INPUTS: [type: string, given: Values, paths: string[]][] = [
  [
    "OverlayNetwork",
    NETWORK,
    [
      "networkName",
      "subnets",
      "hubUnderlayIp",
      "devicePrefix",
      "bridgeName",
      "hubInterface",
      "docker.networkName",
      "docker.range",
      "docker.enabled",
      "hubConnection.host",
    ],
  ],
  [
    "RunnerSubnet",
    RUNNER,
    [
      "runnerName",
      "underlayIp",
      "runnerDevice",
      "docker.networkName",
      "docker.range",
      "docker.enabled",
      "connection.host",
      "hubConnection.host",
      "network.networkName",
      "network.bridgeName",
      "network.devicePrefix",
      "network.subnets",
      "network.hubUnderlayIp",
      "network.docker.networkName",
    ],
  ],
];

/** DNS has longer names than these; they go to the resolver, and into no command. */
const isPlain = (path: string, kind: string): boolean => path.endsWith(".host") && kind === "200 characters";

let fleet: FakeFleet;
let lifecycle: (type: string) => Lifecycle;

beforeEach(async () => {
  fleet = new FakeFleet();
  const pool = await openPool("memory:", { offerTtl: 3600, quarantine: 0 });
  lifecycle = (type) => new Lifecycle(resourceOf(type), worldOf(fleet, pool));
});

function withValue(values: Values, [key, ...rest]: string[], value: string): Values {
  return { ...values, [key!]: rest.length > 0 ? withValue((values[key!] ?? {}) as Values, rest, value) : value };
}

const caller = (name: string) => ({ owner: `org/urn:pulumi:dev::p::overlay:index:X::${name}`, dryRun: false });

describe.each(INPUTS)("%s", (type, given, paths) => {
  test.each(paths)("%s is refused unless it is plain, and no machine is asked", async (path) => {
    for (const [kind, value] of Object.entries(HOSTILE)) {
      if (isPlain(path, kind)) continue;
      const { failures } = await lifecycle(type).check(
        caller("x"),
        undefined,
        withValue(given, path.split("."), value),
      );
      expect(
        failures.map(({ path }) => path),
        `${path}: ${kind}`,
      ).toContain(path);
    }
    expect(fleet.asked).toEqual([]);
  });

  test("plain values pass, so that the refusals above are for what they say", async () => {
    if (type === "RunnerSubnet") {
      const network = lifecycle("OverlayNetwork");
      await network.create((await network.check(caller("training"), undefined, NETWORK)).inputs);
    }
    expect((await lifecycle(type).check(caller("x"), undefined, given)).failures).toEqual([]);
  });
});

test.each(["OverlayNetwork", "RunnerSubnet"])(
  "a %s that is named after its resource is no less strict",
  async (type) => {
    const { networkName: _, runnerName: __, ...given } = { ...NETWORK, ...RUNNER };
    const { network: ___, connection: ____, ...hub } = given;
    const { failures } = await lifecycle(type).check(caller("it's"), undefined, type === "RunnerSubnet" ? given : hub);
    expect(failures.map(({ path }) => path)).toEqual([type === "RunnerSubnet" ? "runnerName" : "networkName"]);
    expect(fleet.asked).toEqual([]);
  },
);
