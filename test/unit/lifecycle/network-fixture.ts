import { beforeEach, expect } from "vitest";
import { openIpam } from "../../../provider/ipam";

import type { Dependencies } from "../../../provider/lifecycle/dependencies";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import { resourceOf } from "../../../provider/resources";
import { FakeFleet, fakeDependencies } from "./fake-fleet";
import { RunOnStore } from "./stage";

/** Lifecycles of networks and runners. After `setUp`, each test has a new store and new hosts. */
export let fleet: FakeFleet;
export let pool: RunOnStore;
export let deps: Dependencies;
export let warnings: string[];
export let networks: Lifecycle;
export let runners: Lifecycle;

export const setUp = (): void =>
  beforeEach(async () => {
    fleet = new FakeFleet();
    pool = new RunOnStore(await openIpam("memory:", { offerTtl: 3600, quarantine: 0 }));
    warnings = [];
    deps = { ...fakeDependencies(fleet, pool), pool: async () => pool, warn: (text) => warnings.push(text) };
    networks = new Lifecycle(resourceOf("OverlayNetwork"), deps);
    runners = new Lifecycle(resourceOf("RunnerSubnet"), deps);
  });

export const newRun = (): void => {
  pool = new RunOnStore(pool.ipam);
};

const hubConnection = { host: "192.0.2.1" };
export const netInputs = (more: Values = {}): Values => ({ networkName: "training", hubConnection, ...more });

export const owner = (name: string): string => `org/urn:pulumi:dev::p::overlay:index:X::${name}`;

export async function checked(
  l: Lifecycle,
  name: string,
  news: Values,
  olds?: Values,
  dryRun = false,
): Promise<Values> {
  const { inputs, failures } = await l.check({ owner: owner(name), dryRun, program: "main" }, olds, news);
  expect(failures).toEqual([]);
  return inputs;
}

export async function makeNetwork(more: Values = {}): Promise<Values> {
  return (await networks.create(await checked(networks, "training", netInputs(more)))).props;
}

const settings = (network: Values): Values =>
  Object.fromEntries(
    [
      "networkName",
      "subnets",
      "tunnel",
      "topology",
      "vniBase",
      "vxlanPort",
      "mtu",
      "masquerade",
      "devicePrefix",
      "bridgeName",
      "verify",
    ].map((k) => [k, network[k]]),
  );

export const runnerInputs = (network: Values, name: string, host: string, more: Values = {}): Values => ({
  network: settings(network),
  runnerName: name,
  connection: { host },
  hubConnection,
  ...more,
});

export async function makeRunner(network: Values, name: string, host: string, more: Values = {}): Promise<Values> {
  return (await runners.create(await checked(runners, name, runnerInputs(network, name, host, more)))).props;
}
