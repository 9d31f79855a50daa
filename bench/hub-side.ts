import { parseLayout } from "../provider/addressing/layout";
import { createFleet } from "../provider/host/fleet";
import { Reconciler } from "../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../provider/host/reconcile/requests";
import { openHosts } from "../provider/host/ssh/hosts";
import { openIpam } from "../provider/ipam";
import { findSpec } from "../provider/ipam/interface";
import { RunPlan } from "../provider/ipam/run-plan";
import type { Store } from "../provider/ipam/types";
import { Lifecycle } from "../provider/lifecycle/lifecycle";
import type { Values } from "../provider/lifecycle/values";
import { planSteps } from "../provider/network/diff/steps";
import { type Network, planTunnel } from "../provider/network/plan/hub";
import { FACTS_SCRIPT, parseFacts } from "../provider/network/read/facts";
import { resourceOf } from "../provider/resources";
import { type NetworkSettings, toNetwork } from "../provider/resources/network-settings";
import { fakeDependencies } from "../test/unit/lifecycle/fake-fleet";

/** The part of `bench hub` that runs in the lab's controller, from where SSH reaches the hosts. */
interface Options {
  /** Without runners, and with `devices` runners. */
  emptyHub: string;
  fullHub: string;
  runner: string;
  devices: number;
  rounds: number;
  key: string;
  knownHosts: string;
}

export interface HubFigures {
  create: number;
  delete: number;
  facts: number;
  parse: number;
  plan: number;
}

const SUBNETS = "10.128.0.0/12/10/10";

async function main({ emptyHub, fullHub, runner, devices, rounds, key, knownHosts }: Options): Promise<void> {
  const reconciler = new Reconciler();
  const hosts = openHosts({
    connectTimeout: 15,
    operationTimeout: 300,
    parallelHosts: 16,
    knownHosts: [knownHosts],
  });
  const at = (host: string) => ({ host, user: "root", privateKeyPath: key });
  const fleet = createFleet(hosts, reconciler, {});
  const make = async (ipam: Store, type: string, name: string, news: Values): Promise<[Lifecycle, Values]> => {
    const lifecycle = new Lifecycle(resourceOf(type), fakeDependencies(fleet, new RunPlan(ipam)));
    const owner = `bench/urn:pulumi:bench::bench::overlay:index:${type}::${name}`;
    const { inputs, failures } = await lifecycle.check({ owner, dryRun: false }, undefined, news);
    if (failures.length > 0) throw new Error(JSON.stringify(failures));
    return [lifecycle, (await lifecycle.create(inputs)).props];
  };

  const openNetwork = async (networkName: string, hub: string) => {
    const pool = await openIpam("memory:", { offerTtl: 3600, quarantine: 0 });
    await make(pool, "OverlayNetwork", networkName, { hubConnection: at(hub), subnets: SUBNETS });
    const { settings } = (await findSpec(pool, `network/${networkName}`))!.data as unknown as {
      settings: NetworkSettings;
    };
    const inputs = { network: settings as unknown as Values, connection: at(runner), hubConnection: at(hub) };
    return { pool, network: toNetwork(settings), connection: await hosts.connect(at(hub)), inputs };
  };
  type HubNetwork = Awaited<ReturnType<typeof openNetwork>>;

  const measure = async ({ pool, network, connection, inputs }: HubNetwork, id: number): Promise<HubFigures> => {
    const create = startTimer();
    const [lifecycle, props] = await make(pool, "RunnerSubnet", "r1", { ...inputs, runnerId: id });
    const created = create();
    const factsTime = startTimer();
    const { stdout } = await connection.exec(FACTS_SCRIPT);
    const facts = factsTime();
    const parseTime = startTimer();
    const parsed = parseFacts(stdout);
    const parse = parseTime();
    const planTime = startTimer();
    planSteps([workFor(network, id)], parsed);
    const plan = planTime();
    const deleting = startTimer();
    await lifecycle.delete(props);
    return { create: created, delete: deleting(), facts, parse, plan };
  };

  const empty = await openNetwork("empty", emptyHub);
  const full = await openNetwork("full", fullHub);
  const ids = Array.from({ length: devices }, (_, i) => i + 1);
  await Promise.all(ids.map((id) => reconciler.apply(full.connection, workFor(full.network, id))));
  const first: HubFigures[] = [];
  const more: HubFigures[] = [];
  for (let i = 0; i <= rounds; i++) {
    first.push(await measure(empty, 1));
    more.push(await measure(full, devices + 1));
  }
  await hosts.end();
  process.stdout.write(`${JSON.stringify({ first: first.slice(1), more: more.slice(1) })}\n`); // the first round is a warm-up
}

/** Another runner's tunnel with its record, as after a create. */
function workFor(network: Network, id: number): ApplyRequest {
  const hub = { underlayIp: "10.254.0.1", underlayMtu: 1500 };
  const runner = { underlayIp: `10.254.${100 + Math.floor(id / 250)}.${1 + (id % 250)}`, underlayMtu: 1500 };
  return {
    record: { uid: `other${id}`, owner: `bench/r${id}`, network: network.networkName, store: "bench" },
    items: planTunnel({ ...network, layouts: [parseLayout(SUBNETS)] }, id, hub, runner),
    persist: true,
    fence: async () => {},
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  };
}

const startTimer = () => {
  const started = performance.now();
  return () => performance.now() - started;
};

void main(JSON.parse(process.argv[2]!) as Options);
