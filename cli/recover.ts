import { randomBytes } from "node:crypto";
import { isOverlayError, OverlayError } from "../provider/errors";
import type { Connection } from "../provider/host/connection";
import {
  type ExistingLease,
  type ImportResult,
  type Ipam,
  type Lease,
  refuseService,
  type Store,
} from "../provider/ipam";
import { formatRangesOf } from "../provider/ipam/errors";
import { findSpec } from "../provider/ipam/interface";
import { parseStamp } from "../provider/lifecycle/lease";
import type { HostRecord } from "../provider/network/model/items";
import { parseDeviceName } from "../provider/network/plan/tunnels/wireguard";
import type { DiscoveredNetwork, DiscoveredRunner } from "../provider/network/read/survey";
import { describePool, NETWORKS } from "../provider/pool-names";
import { networkSettings } from "../provider/resources/network-settings";
import { command, type Session, wholeNumber, withNewPool } from "./command";
import { groupContainers, withContainerUsers } from "./containers";
import { CliHosts, type Login, parseConnections, withLoginOptions } from "./hosts";
import {
  buildRequiredLease,
  type ExportedResource,
  findRequiredLeases,
  hasHiddenHosts,
  readExport,
  sortByDepth,
} from "./stack-export";
import {
  findNetworks,
  type HostState,
  hostName,
  readHostState,
  type SurveyedNetwork,
  type SurveyedRunner,
} from "./survey";

/** `overlayctl recover`: the leases of a lost store, from exports and hosts. */

interface Options extends Login {
  stackExport?: string[];
  host?: Connection[];
  yes?: boolean;
  seenVersion?: number;
}

/** Rebuilds the leases of a lost store from Pulumi's states and the records on hosts. A second run changes nothing. */
export const recoverCommand = () =>
  withLoginOptions(
    command("recover", "Rebuild a lost store from stack exports and hosts: shows the leases; --yes writes them."),
  )
    .option("--stack-export <file...>", "output of `pulumi stack export`, of every stack that uses the store")
    .option(
      "--host <host>",
      "a hub or runner with our records, as [user@]host[:port]; may be repeated",
      parseConnections,
    )
    .option(
      "--seen-version <number>",
      "the store version that a stack without an export has in its state, as STORE_LOST prints it; all leases of that stack must be recovered",
      wholeNumber,
    )
    .option("--yes", "write the leases")
    .action(
      withNewPool<Options>(async (session, options) => {
        refuseService(session.settings.store);
        const { stackExport = [], yes = false } = options;
        const exports = await Promise.all(stackExport.map(readExport));
        const exported = exports.flatMap(({ resources }) => resources);
        const reads = await readHosts(session, options);
        const recorded = readRecorded(reads);
        if (exports.length === 0 && !options.host && options.seenVersion === undefined) throw noSourceError();
        const found = await mergeSources(session.pool, exported, recorded.resources);
        await importFound(session, found, reads, yes);
        if (yes) await adoptStoreIdentity(session.pool, exported, recorded, options.seenVersion);
        if (exported.some(hasHiddenHosts)) session.out.note(HIDDEN_HOSTS_NOTE);
        if (recorded.unclear.length > 0)
          session.out.note(`Skipped, because hosts do not have all their properties: ${recorded.unclear.join(", ")}.`);
      }),
    );

const noSourceError = (): OverlayError =>
  new OverlayError("INPUT_INVALID", "Neither exports nor hosts were given.", "Give --stack-export, --host, or both.");

async function readHosts({ settings }: Session, options: Options): Promise<HostState[]> {
  const hosts = new CliHosts(settings, options);
  const reading = (options.host ?? []).map((each) => () => readHostState(hosts, each));
  return hosts.use(() => Promise.all(reading.map((read) => read())));
}

/** Gives the store the id and version that stacks and records on hosts have, so that they accept it. */
async function adoptStoreIdentity(
  pool: Store,
  exported: ExportedResource[],
  { stores }: Recorded,
  seenVersion: number | undefined,
): Promise<void> {
  const stamps = exported.flatMap(({ props }) => parseStamp(props) ?? []);
  const ids = new Set(stamps.map(({ id }) => id));
  // If the hosts have records of several stores, it is not known which is this one.
  if (stores.size === 1) for (const id of stores) ids.add(id);
  const version = Math.max(seenVersion ?? 0, ...stamps.map(({ version }) => version));
  await pool.admin.adoptIdentity([...ids], version, { complete: seenVersion !== undefined });
}

async function importFound(
  { pool, out, settings }: Session,
  found: ExportedResource[],
  reads: HostState[],
  yes: boolean,
): Promise<void> {
  const all = findRequiredLeases(found, settings.tenantDefaults);
  const facts = sortByDepth(await withContainerUsers(pool, all, found, groupContainers(reads)));
  const plan = await pool.importLeases(facts, { dryRun: !yes });
  out.list(await describeImport(pool, plan, found), ["action", "type", "value", "pool", "childPool", "owner"]);
  if (plan.conflicts.length > 0) throw importConflictError(plan, found);
  out.note(summarizeImport(plan, yes));
}

const HIDDEN_HOSTS_NOTE =
  "Connections are encrypted in these exports, so the addresses of hosts are not written; `pulumi stack export --show-secrets` has them.";

const summarizeImport = ({ added, unchanged }: ImportResult, yes: boolean): string =>
  added.length === 0
    ? `Nothing to do: all ${unchanged.length} leases are in the store.`
    : yes
      ? `Written: ${added.length}; already in the store: ${unchanged.length}.`
      : `Would be written: ${added.length}; already in the store: ${unchanged.length}. Nothing is written without --yes.`;

async function describeImport(pool: Ipam, { added, unchanged, conflicts }: ImportResult, found: ExportedResource[]) {
  const row = async (
    action: string,
    lease: Pick<Lease, "pool" | "type" | "owner" | "ranges" | "leaseId"> & { childPool?: string },
  ) => ({
    action,
    type: lease.type,
    value: formatRangesOf(await kindOf(pool, lease.pool), lease.ranges),
    pool: lease.pool,
    childPool: lease.childPool,
    owner: lease.owner,
    leaseId: lease.leaseId,
  });
  const refused = conflicts.map(async ({ lease, error }) => ({
    ...(await row("conflict", {
      ...withoutSpec(lease),
      ranges: lease.values,
      leaseId: lease.identity?.leaseId ?? "",
    })),
    source: sourceOf(lease, found),
    error: error.code,
    message: error.message,
  }));
  const fine = [...added.map((lease) => row("add", lease)), ...unchanged.map((lease) => row("known", lease))];
  return Promise.all([...fine, ...refused]);
}

const withoutSpec = ({ childPool, ...lease }: ExistingLease) => ({
  ...lease,
  ...(childPool && { childPool: childPool.name }),
});

/** In a dry run the pools of networks do not exist yet. */
const kindOf = async (pool: Ipam, name: string) =>
  (await findSpec(pool, name))?.kind ?? (name.startsWith(NETWORKS) ? "id" : "address");

const sourceOf = ({ identity }: ExistingLease, found: ExportedResource[]): string | undefined =>
  found.find(({ props }) => props.leaseId === identity?.leaseId)?.source;

function importConflictError({ conflicts }: ImportResult, found: ExportedResource[]): OverlayError {
  const lines = conflicts.map(({ lease, error }) => `\n  ${lease.owner} (${sourceOf(lease, found)}): ${error.what}`);
  const what = `${conflicts.length} of ${found.length} resources conflict with others or with the store; nothing was written.${lines.join("")}\n `;
  return new OverlayError(
    "STORE_CONFLICT",
    what,
    "Leave out outdated exports, or correct the resources that conflict.",
  );
}

/**
 * Exports have more properties than records on hosts, so records are used only for resources without an export. A record that
 * contradicts an export is an error: one of them is outdated.
 */
async function mergeSources(
  pool: Ipam,
  exported: ExportedResource[],
  recorded: ExportedResource[],
): Promise<ExportedResource[]> {
  const byUid = new Map(exported.map((each) => [each.props.uid, each]));
  const contradicting = recorded.filter((each) => {
    const other = byUid.get(each.props.uid);
    return other && !isSameHolding(other, each);
  });
  if (contradicting.length > 0) throw contradictionError(contradicting, byUid);
  const added = recorded.filter(({ props }) => !byUid.has(props.uid));
  return [...exported, ...(await Promise.all(added.map((each) => withKnownLease(pool, each))))];
}

const describeHolding = (each: ExportedResource): string => {
  const { pool, values } = buildRequiredLease(each);
  return `${values.map(({ first, last }) => (first === last ? first : `${first}-${last}`)).join(", ")} in ${describePool(pool)}`;
};
const isSameHolding = (a: ExportedResource, b: ExportedResource): boolean =>
  a.props.owner === b.props.owner && describeHolding(a) === describeHolding(b);

function contradictionError(contradicting: ExportedResource[], byUid: Map<string, ExportedResource>): OverlayError {
  const lines = contradicting.map((each) => {
    const other = byUid.get(each.props.uid)!;
    const side = (one: ExportedResource) => `${one.source} says ${one.props.owner} has ${describeHolding(one)}`;
    return `\n  ${each.props.uid}: ${side(each)}; ${side(other)}`;
  });
  return new OverlayError(
    "STORE_CONFLICT",
    `${contradicting.length} records on hosts contradict the exports; nothing was written.${lines.join("")}\n `,
    "Export the stacks again, or leave out hosts with outdated records.",
  );
}

/** A lease that an earlier run has written has a lease id. */
async function withKnownLease(pool: Ipam, each: ExportedResource): Promise<ExportedResource> {
  const lease = await pool
    .find({ pool: buildRequiredLease(each).pool, uid: each.props.uid })
    .catch((error: unknown) => {
      if (isOverlayError(error, "POOL_NOT_FOUND")) return undefined;
      throw error;
    });
  return lease ? { ...each, props: { ...each.props, leaseId: lease.leaseId } } : each;
}

/**
 * Leases from records on hosts. The hub has a record for its network and one for each runner, with uid and owner; values and settings
 * are read from the devices. Hosts do not have lease ids, so new ones are made. A stack that still exists treats its lease as renewed,
 * and claims it again under the same uid and with the same values.
 */
export interface Recorded {
  resources: ExportedResource[];
  /** The store that wrote them. */
  stores: Set<string>;
  /** Records without enough data on hosts. */
  unclear: string[];
}

function readRecorded(reads: HostState[]): Recorded {
  const networks = findNetworks(reads).filter(({ network }) => network.networkName !== undefined);
  const resources = networks.flatMap((each) => [
    ...networkFromRecords(each),
    ...each.runners.flatMap((r) => runnerFromRecords(r, each)),
  ]);
  const all = reads.flatMap((read) => read.facts.records.map((record) => ({ read, record })));
  const known = new Set(resources.map(({ props }) => props.uid));
  return {
    resources,
    stores: new Set(all.map(({ record }) => record.store)),
    unclear: [
      ...new Set(
        all
          .filter(({ record }) => !known.has(record.uid))
          .map(({ record, read }) => `${record.owner} on ${hostName(read)}`),
      ),
      ...reads.flatMap((read) =>
        read.facts.invalidRecords.map(({ file, reason }) => `${file} on ${hostName(read)}: not a record (${reason})`),
      ),
    ],
  };
}

/** Like the pool makes them: a lease id begins with the uid. */
const makeIdentity = ({ uid, owner }: HostRecord) => ({
  uid,
  owner,
  leaseId: `${uid}.${randomBytes(8).toString("hex")}`,
});

function networkFromRecords(surveyed: SurveyedNetwork): ExportedResource[] {
  const { network, hub } = surveyed;
  const record = hub.facts.records.find((each) => hasLink(each, network.hubInterface));
  if (!record) return [];
  const { host, port } = hub.connection;
  const device = network.tunnels[0]?.device ?? "";
  const props = {
    ...settingsFromHosts(surveyed),
    ...makeIdentity(record),
    hubConnection: { host, port },
    tunnelEnd: tunnelEndFrom(network, {
      device,
      remote: network.hubUnderlayIp,
      publicKey: hub.facts.links.get(device)?.wireguard?.publicKey,
    }),
  };
  return [{ source: hostName(hub), type: "OverlayNetwork", props }];
}

/** Settings that no host has, such as `verify`, get their defaults; the next up of the network corrects them. */
function settingsFromHosts({ network, hub, runners }: SurveyedNetwork) {
  const first = runners.find(({ at }) => at)?.at?.seen;
  const { subnets, hubUnderlayIp, tunnels: _, ...settings } = network;
  return networkSettings.parse({
    ...settings,
    subnets: subnets.length === 1 ? subnets[0] : subnets,
    ...(hubUnderlayIp !== hub.connection.host && { hubUnderlayIp }),
    ...(first && fromRunner(first)),
  });
}

const fromRunner = ({ bridgeName, masquerade, topology, isAutoMtu, mtu }: DiscoveredRunner) => ({
  bridgeName,
  masquerade,
  topology,
  mtu: isAutoMtu ? ("auto" as const) : mtu,
});

function runnerFromRecords(runner: SurveyedRunner, surveyed: SurveyedNetwork): ExportedResource[] {
  const { hub, network } = surveyed;
  const { publicKey, device } = runner;
  const record = hub.facts.records.find((each) =>
    publicKey === undefined ? hasLink(each, device) : hasPeer(each, publicKey),
  );
  if (!record) return [];
  const { host, port } = hub.connection;
  const at = runner.at?.host.connection;
  const props = {
    ...makeIdentity(record),
    network: settingsFromHosts(surveyed),
    runnerName: record.name ?? runner.name,
    runnerId: runner.runnerId,
    hubConnection: { host, port },
    ...(at && { connection: { host: at.host, port: at.port } }),
    tunnelEnd: tunnelEndFrom(network, runner),
  };
  return [{ source: hostName(hub), type: "RunnerSubnet", props }];
}

const hasLink = ({ items }: HostRecord, name: string): boolean =>
  items.some((item) => item.kind === "link" && item.name === name);

const hasPeer = ({ items }: HostRecord, publicKey: string): boolean =>
  items.some((item) => item.kind === "wgpeer" && item.publicKey === publicKey);

/** Hosts show of a generation only whether it is even or odd, so it is left out. The next up adds it. */
const tunnelEndFrom = (
  { wireguardPort = 0, vniBase, vxlanPort }: DiscoveredNetwork,
  { device, remote, publicKey }: Pick<SurveyedRunner, "device" | "remote"> & { publicKey?: string | undefined },
) =>
  publicKey === undefined
    ? { tunnel: "vxlan", vniBase, underlayIp: remote, port: vxlanPort }
    : {
        tunnel: "wireguard",
        underlayIp: remote,
        port: wireguardPort + (parseDeviceName(device)?.slot ?? 0),
        publicKey,
      };
