import { deviceMac, type RunnerLayout, runnerLayout } from "../addressing/layout";
import type { RunnerConfig } from "../answers";
import { OverlayError } from "../errors";
import { formatTime } from "../format-time";
import { findSpec, listSpecs } from "../ipam/interface";
import { type Ipam, isCommitted, type Lease, type PoolSpec } from "../ipam/types";
import { isSameTenant } from "../owner";
import { addressPool, listNames, MOST_NAMES, NETWORKS, networkOfPool, networkPool } from "../pool-names";
import { parseSettings } from "../resource";
import { layoutsOf, readHub, storedNetwork } from "../resources/network-settings";
import { addressPoolSpec, readOverrides, runnerValues } from "../resources/runner-subnet";
import type { Context } from "./context";
import type { RunnerInput } from "./inputs";

/** A runner in the store, with the pool of its addresses. */
export interface Runner {
  network: string;
  name: string;
  /** Its lease in the network's pool of ids. */
  lease: Lease;
  /** One for each address family of the network. */
  layouts: RunnerLayout[];
  /** `runner/NETWORK/NAME`. */
  pool: string;
  /** The specification of that pool. */
  addresses: PoolSpec;
}

export async function requireNetwork(pool: Ipam, network: string): Promise<PoolSpec> {
  const spec = await findSpec(pool, networkPool(network));
  if (spec) return spec;
  const known = (await listSpecs(pool, { prefix: NETWORKS, limit: MOST_NAMES + 1 })).map(({ name }) =>
    networkOfPool(name),
  );
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There is no network '${network}' in the store; it has ${listNames(known)}.`,
    "Check the name and the store (--store, OVERLAY_STORE); a store that was lost comes back with `overlayctl recover`.",
  );
}

export async function findRunner(pool: Ipam, network: string, name: string): Promise<Runner> {
  const [spec, lease] = await Promise.all([
    requireNetwork(pool, network),
    pool.find({ pool: networkPool(network), name: addressPool(network, name) }),
  ]);
  if (lease && lease.state !== "offered") return describeRunner(spec, lease, network, name);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `Network ${network} has no runner '${name}'${lease ? " yet: only a preview has it" : ""}.`,
    `\`overlayctl pool show ${networkPool(network)}\` lists those that it has.`,
  );
}

/** A runner by its name and network, by `NETWORK/NAME`, or by its name alone if only one network of its tenant has it. */
export async function findRunnerNamed(
  context: Pick<Context, "pool" | "tenant">,
  { network, runner }: { network?: string | undefined; runner: string },
): Promise<Runner> {
  const [name, prefix] = runner.split("/").reverse() as [string, string?];
  if (network !== undefined && prefix !== undefined && network !== prefix)
    throw new OverlayError(
      "INPUT_INVALID",
      `Runner ${runner} is not in network ${network}.`,
      "Give the network once, or the same twice.",
    );
  return findRunner(context.pool, network ?? prefix ?? (await findNetworkOf(context, name)), name);
}

/** Networks of the tenant of the caller come first; without a tenant, those that all tenants share. */
async function findNetworkOf({ pool, tenant }: Pick<Context, "pool" | "tenant">, runner: string): Promise<string> {
  const specs = await listSpecs(pool, { prefix: NETWORKS });
  const networks = specs.map(({ name }) => networkOfPool(name));
  const leases = await Promise.all(networks.map((network) => pool.find({ name: addressPool(network, runner) })));
  const having = specs.filter((_, i) => leases[i] && leases[i].state !== "offered");
  const own = having.filter((spec) => isSameTenant(spec.tenant, tenant));
  const [found, ...others] = (own.length > 0 ? own : having).map(({ name }) => networkOfPool(name));
  if (found === undefined)
    throw new OverlayError(
      "POOL_NOT_FOUND",
      `No network has a runner '${runner}'; there are networks ${listNames(networks)}.`,
      "Check the name and the store.",
    );
  if (others.length === 0) return found;
  throw new OverlayError(
    "INPUT_INVALID",
    `Networks ${[found, ...others].join(" and ")} each have a runner '${runner}'.`,
    `Give the network, too, or write ${found}/${runner}.`,
  );
}

/** The runners of a network that are up, by their ids. */
export async function listRunners(pool: Ipam, network: string): Promise<Runner[]> {
  const spec = await requireNetwork(pool, network);
  return (await pool.leases(spec.name)).flatMap((lease) => {
    const name = readRunnerName(lease, network);
    const isUp = isCommitted(lease) && lease.deletingSince === undefined;
    return isUp && name !== undefined ? [describeRunner(spec, lease, network, name)] : [];
  });
}

function describeRunner(spec: PoolSpec, lease: Lease, network: string, name: string): Runner {
  const settings = parseSettings(storedNetwork, spec);
  const id = Number(lease.ranges[0]!.first);
  const layouts = layoutsOf(settings.subnets).map((layout) => runnerLayout(layout, id));
  const addresses = addressPoolSpec(settings, name, id);
  return { network, name, lease, layouts, pool: addresses.name, addresses };
}

/** The name of a runner, from its lease. */
export const readRunnerName = (lease: Lease, network: string): string | undefined => {
  const prefix = addressPool(network, "");
  return lease.names?.find((name) => name.startsWith(prefix))?.slice(prefix.length);
};

/** The runner whose subnet has this address, or why there is none. `networks` are the pools `network/…`. */
export async function findRunnerAt(pool: Ipam, networks: PoolSpec[], ip: bigint): Promise<Runner | string | undefined> {
  const spec = networks.find((spec) => layoutAt(spec, ip));
  if (!spec) return undefined;
  const network = networkOfPool(spec.name);
  const layout = layoutAt(spec, ip)!;
  const id = (ip - layout.base) >> BigInt(layout.subnetBits);
  const lease = id === 0n ? undefined : await pool.find({ pool: spec.name, value: id });
  const name = lease && lease.state !== "offered" ? readRunnerName(lease, network) : undefined;
  if (!lease || name === undefined) return `it is in the subnet of id ${id} of network ${network}, which no runner has`;
  return describeRunner(spec, lease, network, name);
}

const layoutAt = (spec: PoolSpec, ip: bigint) =>
  layoutsOf(parseSettings(storedNetwork, spec).subnets).find(({ range }) => range.first <= ip && ip <= range.last);

/** All that a machine needs to configure itself as a runner. Properties are called as the outputs of a RunnerSubnet. */
export async function describeRunnerConfig(context: Context, input: RunnerInput): Promise<RunnerConfig> {
  const { pool } = context;
  const runner = await findRunnerNamed(context, input);
  const spec = (await findSpec(pool, runner.lease.pool))!;
  const network = parseSettings(storedNetwork, spec);
  const overrides = readOverrides((await findSpec(pool, runner.pool)) ?? runner.addresses);
  const id = Number(runner.lease.ranges[0]!.first);
  const hub = readHub(spec);
  return {
    runnerName: runner.name,
    ...runnerValues(network, overrides, id),
    ...(hub !== undefined && { hub }),
    ...(network.hubUnderlayIp !== undefined && { hubUnderlayIp: network.hubUnderlayIp }),
    tunnel: network.tunnel,
    vxlanPort: network.vxlanPort,
    mtu: overrides.mtu ?? network.mtu,
    masquerade: overrides.masquerade ?? network.masquerade,
    bridgeMac: deviceMac(runner.network, id, "bridge"),
    runnerMac: deviceMac(runner.network, id, "runner"),
    routes: layoutsOf(network.subnets).map(({ cidr }, i) => ({ to: cidr, via: runner.layouts[i]!.hubIp })),
    lastSeen: formatTime(runner.lease.lastSeen),
  };
}
