import { findSpec, listSpecs } from "../ipam/interface";
import { positionOf } from "../ipam/ranges";
import { type Ipam, isCommitted, type Lease, type PoolSpec } from "../ipam/types";
import { containerOwner } from "../owner";
import { addressPool, RUNNERS, runnerOfPool } from "../pool-names";
import { userLeaseName } from "../resources/runner-subnet";
import { findNamedPool, givesAddresses, hasInRange } from "./address-pools";
import { type Context, isVisible } from "./context";
import type { SearchInput } from "./inputs";
import { formatValue, isHeldBy, ownerFor } from "./leases";
import { requireNetwork } from "./runners";

export interface LeasePage {
  leases: Lease[];
  /** The cursor of the next page; absent: this is the last. */
  next?: string;
}

/** Leases on addresses and ports that have all of these properties. Without `state`: those that are held, reserved or used. */
export const findLeases = async (context: Context, search: Partial<SearchInput> = {}): Promise<Lease[]> =>
  (await findLeasePage(context, search)).leases;

/** Leases and pools that are read for one page, as long as one is not complete. */
const MOST_READ = 5000;

/**
 * The first `limit` of them after the cursor, by pool and value. Reads no further than the page. A page for which many leases were read that do
 * not match ends early: it may be empty, and `next` goes on.
 */
export async function findLeasePage(context: Context, search: Partial<SearchInput> = {}): Promise<LeasePage> {
  const { limit = Infinity } = search;
  const leases: Lease[] = [];
  let read = 0;
  let at: Position | undefined;
  for await (const { lease, ...position } of readLeases(context, search)) {
    const last = leases.at(-1);
    // Leases that share a value are on one page.
    if (lease && last && leases.length >= limit && !isSame(positionIn(last), position))
      return { leases, next: formatCursor(positionIn(last)) };
    if (at && limit < Infinity && read >= MOST_READ && !isSame(at, position)) return { leases, next: formatCursor(at) };
    read++;
    at = position;
    if (lease) leases.push(lease);
  }
  return { leases };
}

interface Position {
  pool: string;
  value: bigint;
}

const positionIn = (lease: Lease): Position => ({ pool: lease.pool, value: positionOf(lease) });

const isSame = (a: Position, b: Position): boolean => a.pool === b.pool && a.value === b.value;

const formatCursor = ({ pool, value }: Position): string => `${pool}/${formatValue(value)}`;

/** What was read: pools, and leases of which `lease` is one that is searched. */
async function* readLeases(
  context: Context,
  search: Partial<SearchInput>,
): AsyncGenerator<Position & { lease?: Lease }> {
  for await (const specs of readPools(context, search)) {
    const indexed = await Promise.all(specs.map((spec) => readIndexed(context, spec, search)));
    for (const [i, spec] of specs.entries()) {
      const after = spec.name === search.after?.pool ? search.after.value : -1n;
      yield { pool: spec.name, value: after < 0n ? 0n : after };
      const found = indexed[i]?.filter((lease) => positionOf(lease) > after);
      for await (const lease of found ?? readPages(context.pool, spec, search, after))
        yield {
          ...positionIn(lease),
          ...(lease.childPool === undefined && isVisible(lease, context) && matches(lease, search) && { lease }),
        };
    }
  }
}

/** undefined: all leases of the pool must be read. */
async function readIndexed(
  context: Context,
  spec: PoolSpec,
  { ip, by }: Partial<SearchInput>,
): Promise<Lease[] | undefined> {
  if (ip !== undefined) return leasesAt(context.pool, spec, ip);
  return by === undefined ? undefined : leasesBy(context, spec, by);
}

const PAGE = 250;

async function* readPages(
  pool: Ipam,
  spec: PoolSpec,
  { limit = PAGE }: Partial<SearchInput>,
  after: bigint,
): AsyncGenerator<Lease> {
  const size = Math.min(PAGE, limit + 1);
  for (let at = after; ; ) {
    const page = await pool.leases(spec.name, { after: at, limit: size });
    yield* page;
    if (page.length < size) return;
    at = positionOf(page.at(-1)!);
  }
}

/** All that share an address, quarantined ones too. */
const leasesAt = async (pool: Ipam, spec: PoolSpec, ip: bigint): Promise<Lease[]> => {
  const next = await pool.leases(spec.name, { after: ip - 1n, limit: 1 });
  return next.filter(({ ranges }) => ranges.some(({ first, last }) => first <= ip && ip <= last));
};

/**
 * Leases of a container on a runner, without a scan: by its name in the network, and by the owners of imported leases, which have no such
 * name. undefined: the pool is not that of a runner.
 */
async function leasesBy({ pool, tenant }: Context, spec: PoolSpec, by: string): Promise<Lease[] | undefined> {
  const at = runnerOfPool(spec.name);
  if (!at) return undefined;
  const made = [...new Set([ownerFor(spec.name, by), ownerFor(spec.name, by, tenant)])];
  const owners = [...made, containerOwner(at.network, at.runner, by)];
  const [named, ...owned] = await Promise.all([
    pool.find({ name: userLeaseName(at.network, by) }),
    ...owners.map((owner) => pool.leases(spec.name, { owner })),
  ]);
  const found = new Map(named?.pool === spec.name ? [[named.uid, named]] : []);
  for (const lease of owned.flat()) found.set(lease.uid, lease);
  return [...found.values()].sort((a, b) => (positionOf(a) < positionOf(b) ? -1 : 1));
}

/** Pools that are read at once. */
const POOLS = 200;

/** The pools to search, by name, from that of the cursor on. Indexed searches in those that are read at once are made together. */
async function* readPools(context: Context, search: Partial<SearchInput>): AsyncGenerator<PoolSpec[]> {
  const scope = await findScope(context, search);
  const isSearched = (spec: PoolSpec): boolean => isInScope(spec, search) && isVisible(spec, context);
  const first = scope.pool ?? search.after?.pool;
  const spec = first === undefined ? undefined : await findSpec(context.pool, first);
  if (spec?.name.startsWith(scope.prefix) && isSearched(spec)) yield [spec];
  for (let after = first; scope.pool === undefined; ) {
    const specs = await listSpecs(context.pool, {
      prefix: scope.prefix,
      limit: POOLS,
      ...(after !== undefined && { after }),
    });
    yield specs.filter(isSearched);
    if (specs.length < POOLS) return;
    after = specs.at(-1)!.name;
  }
}

/** What the names of the searched pools begin with; `pool`: it is only one. A runner without a network is searched in all networks. */
async function findScope(context: Context, search: Partial<SearchInput>): Promise<{ prefix: string; pool?: string }> {
  const { network, runner } = search;
  if (network !== undefined) await requireNetwork(context.pool, network);
  if (search.pool === undefined && runner === undefined)
    return { prefix: network === undefined ? "" : addressPool(network, "") };
  if (search.pool === undefined && network === undefined && !runner!.includes("/")) return { prefix: RUNNERS };
  const { pool } = (await findNamedPool(context, search))!;
  return { prefix: pool, pool };
}

const isInScope = (spec: PoolSpec, { runner, ip }: Partial<SearchInput>): boolean =>
  givesAddresses(spec) &&
  (runner === undefined || runnerOfPool(spec.name)?.runner === runner.split("/").at(-1)) &&
  (ip === undefined || (spec.kind === "address" && hasInRange(spec, ip)));

function matches(lease: Lease, { owner, by, labels = [], tenant, state }: Partial<SearchInput>): boolean {
  const isAsked = state === undefined ? isCommitted(lease) : lease.state === state;
  return (
    isAsked &&
    (owner === undefined || lease.owner.includes(owner)) &&
    (by === undefined || isHeldBy(lease, by)) &&
    (tenant === undefined || (lease.tenant?.org === tenant.org && lease.tenant.project === tenant.project)) &&
    labels.every((label) => hasLabel(lease, label))
  );
}

function hasLabel({ labels = {} }: Lease, label: string): boolean {
  const at = label.indexOf("=");
  return labels[label.slice(0, at)] === label.slice(at + 1);
}
