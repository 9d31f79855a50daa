import { expect, test } from "vitest";
import { expandReferences, shortenReferences, wholeReferences } from "../../../provider/lifecycle/shown-inputs";
import { UNKNOWN } from "../../../provider/lifecycle/values";
import { resourceOf } from "../../../provider/resources";

const network = { networkName: "training", mtu: "auto", docker: { enabled: "auto" } };
const shownNetwork = {
  network: "training",
  "__network.networkName": "training",
  "__network.mtu": "auto",
  "__network.docker": { enabled: "auto" },
};
const runners = [
  { networkName: "training", runnerName: "r1", subnets: ["10.0.0.0/24"] },
  { networkName: "training", runnerName: "r2", subnets: ["10.0.1.0/24"] },
];
const shownRunners = { runners: ["training/r1", "training/r2"], "__runners.0": runners[0], "__runners.1": runners[1] };

test.each([
  ["RunnerSubnet", { owner: "o", cordon: false, network }, { __owner: "o", cordon: false, ...shownNetwork }],
  ["StaticIP", { runners }, shownRunners],
  ["StaticIP", { runners: [] }, { runners: [] }],
  ["IPReservation", { runner: runners[0] }, { runner: "training/r1", ...prefixed("runner", runners[0]!) }],
  ["IPReservation", { pool: { poolName: "web" } }, { pool: "web", "__pool.poolName": "web" }],
  ["IPReservation", { pool: UNKNOWN }, { pool: UNKNOWN }],
  ["IPReservation", { pool: { poolName: UNKNOWN } }, { pool: { poolName: UNKNOWN } }],
])("Pulumi shows the name for a reference of %s: %j", (type, props, shown) => {
  const def = resourceOf(type);
  expect(shortenReferences(def, props, [])).toEqual(shown);
  expect(expandReferences(def, shown)).toEqual(props);
});

test("a reference with a secret stays as it is, and so do its outputs", () => {
  const def = resourceOf("RunnerSubnet");
  expect(shortenReferences(def, { network }, ["network"])).toEqual({ network });
  expect(wholeReferences(def, { network })).toEqual(["network"]);
  expect(wholeReferences(def, shownNetwork)).toEqual([]);
});

test("a reference that is to be replaced is unknown, also with its former settings", () => {
  expect(expandReferences(resourceOf("RunnerSubnet"), { ...shownNetwork, network: UNKNOWN })).toEqual({
    network: UNKNOWN,
  });
});

function prefixed(key: string, settings: object): object {
  return Object.fromEntries(Object.entries(settings).map(([name, value]) => [`__${key}.${name}`, value]));
}
