import { Counter, Gauge, type Registry } from "prom-client";
import type { Ipam, LoggedEvent, PoolSpec, Usage } from "../../provider/ipam/types";
import { SPACES } from "../../provider/pool-names";
import { countRoom, poolTypeOf, type Room } from "../../provider/reservations";
import { withStoreTimeout } from "../readiness";

/** Metrics of pools. Their state is read from the store when it is asked for; changes are counted where they are made. */

const LABELS = ["org_id", "project_id", "pool_type", "pool"] as const;
type PoolLabels = Record<(typeof LABELS)[number], string>;

/** Pools past the limit, deleted ones and unknown ones. */
const OTHER: PoolLabels = { org_id: "", project_id: "", pool_type: "", pool: "other" };

/** The state is read at most this often. Milliseconds. */
const CACHE_MS = 5000;
/** Pools that are counted apart between two scrapes. */
const MOST_COUNTED = 10_000;

type CounterName = "allocations" | "releases" | "failures";

/** What an event counts as. Changes of a lease that stays with its owner count as nothing. */
const COUNTED: Partial<Record<LoggedEvent["what"], CounterName>> = {
  claimed: "allocations",
  imported: "allocations",
  released: "releases",
  expired: "releases",
  reclaimed: "releases",
  "handed over": "releases",
};

interface PoolState {
  spec: PoolSpec;
  usage: Usage;
  room: Room;
}

const GAUGES: Record<string, { help: string; read(state: PoolState): bigint | number }> = {
  total: { help: "Values that the pool can give out.", read: ({ room }) => room.capacity },
  allocated: { help: "Values that are held or offered.", read: ({ room }) => room.held },
  available: { help: "Values that are neither held nor offered.", read: ({ room }) => room.capacity - room.held },
  offered: { help: "Offers that previews have made.", read: ({ usage }) => usage.offered },
  quarantined: { help: "Leases that have ended, and are in quarantine.", read: ({ usage }) => usage.quarantined },
};

interface Count {
  counter: CounterName;
  reason: string;
  count: number;
}

export class PoolMetrics {
  /** All pools of the last scrape. */
  #names = new Set<string>();
  /** Labels of the pools that have series of their own. A pool keeps them until it is deleted. */
  readonly #labels = new Map<string, PoolLabels>();
  /** By pool, then by counter and reason. Those of other pools are under "". */
  readonly #counts = new Map<string, Map<string, Count>>();
  readonly #counters: Record<CounterName, Counter<"reason" | keyof PoolLabels>>;
  readonly #gauges = new Map<string, Gauge<keyof PoolLabels>>();
  readonly #storeUp: Gauge;
  #cached: { at: number; states: Promise<PoolState[]> } | undefined;

  constructor(
    registry: Registry,
    /** Pools that get series of their own. */
    private readonly mostPools: number,
    private readonly now: () => number = Date.now,
  ) {
    const registers = [registry];
    for (const [name, { help }] of Object.entries(GAUGES))
      this.#gauges.set(name, new Gauge({ name: `overlay_ipam_pool_${name}`, help, labelNames: LABELS, registers }));
    const counter = (name: CounterName, help: string) =>
      new Counter({ name: `overlay_ipam_${name}_total`, help, labelNames: [...LABELS, "reason"], registers });
    this.#counters = {
      allocations: counter("allocations", "Leases that this instance has made."),
      releases: counter("releases", "Leases that this instance has ended, by the way in which they ended."),
      failures: counter("failures", "Claims that this instance has refused, by error code."),
    };
    this.#storeUp = new Gauge({ name: "overlay_store_up", help: "Whether the store answers.", registers });
  }

  countEvents(events: LoggedEvent[]): void {
    for (const { what, pool } of events) {
      const counter = COUNTED[what];
      if (counter) this.#add(pool, { counter, reason: what, count: 1 });
    }
  }

  countFailure(pool: string, code: string): void {
    this.#add(pool, { counter: "failures", reason: code, count: 1 });
  }

  #add(pool: string, { counter, reason, count }: Count): void {
    const name = this.#counts.has(pool) || this.#counts.size < MOST_COUNTED ? pool : "";
    const counts = this.#counts.get(name) ?? new Map<string, Count>();
    const key = `${counter} ${reason}`;
    counts.set(key, { counter, reason, count: count + (counts.get(key)?.count ?? 0) });
    this.#counts.set(name, counts);
  }

  /** Before a scrape. If the store does not answer, pools have no values: old ones would hide it. */
  async update(pool: PoolReader): Promise<void> {
    try {
      const states = await this.#readStates(pool);
      this.#assignLabels(states.map(({ spec }) => spec));
      this.#setGauges(states);
      this.#setCounters();
      this.#storeUp.set(1);
    } catch {
      for (const gauge of this.#gauges.values()) gauge.reset();
      this.#storeUp.set(0);
    }
  }

  /** From the cache, unless a pool was counted that it does not have. */
  #readStates(pool: PoolReader): Promise<PoolState[]> {
    const isNew = [...this.#counts.keys()].some((name) => name !== "" && !this.#names.has(name));
    if (!this.#cached || isNew || this.now() - this.#cached.at >= CACHE_MS) {
      const read = { at: this.now(), states: withStoreTimeout(readStates(pool)) };
      read.states.catch(() => {
        if (this.#cached === read) this.#cached = undefined;
      });
      this.#cached = read;
    }
    return this.#cached.states;
  }

  #assignLabels(specs: PoolSpec[]): void {
    this.#names = new Set(specs.map(({ name }) => name));
    for (const name of this.#labels.keys()) if (!this.#names.has(name)) this.#labels.delete(name);
    // Address spaces last: pools are cut out of them, so they say little.
    for (const spec of [...specs.filter((spec) => !isSpace(spec)), ...specs.filter(isSpace)]) {
      if (this.#labels.size >= this.mostPools) break;
      if (!this.#labels.has(spec.name)) this.#labels.set(spec.name, labelsOf(spec));
    }
  }

  /** Address spaces are not added to others: they have nearly all addresses that there are. */
  #setGauges(states: PoolState[]): void {
    const shown = states.filter(({ spec }) => this.#labels.has(spec.name) || !isSpace(spec));
    for (const [name, { read }] of Object.entries(GAUGES)) {
      const gauge = this.#gauges.get(name)!;
      gauge.reset();
      for (const state of shown) gauge.inc(this.#labels.get(state.spec.name) ?? OTHER, Number(read(state)));
    }
  }

  /** Counts that were shown as those of other pools stay there, so that no series goes down. */
  #setCounters(): void {
    for (const [name, counts] of this.#counts) {
      if (name === "" || this.#labels.has(name)) continue;
      this.#counts.delete(name);
      for (const count of counts.values()) this.#add("", count);
    }
    for (const counter of Object.values(this.#counters)) counter.reset();
    for (const [name, counts] of this.#counts) {
      const labels = this.#labels.get(name) ?? OTHER;
      for (const { counter, reason, count } of counts.values())
        this.#counters[counter].inc({ ...labels, reason }, count);
    }
  }
}

type PoolReader = Pick<Ipam, "pools">;

const isSpace = ({ name }: PoolSpec): boolean => name.startsWith(SPACES);

const labelsOf = (spec: PoolSpec): PoolLabels => ({
  org_id: spec.tenant?.org ?? "",
  project_id: spec.tenant?.project ?? "",
  pool_type: poolTypeOf(spec),
  pool: spec.name,
});

async function readStates(pool: PoolReader): Promise<PoolState[]> {
  const pools = await pool.pools({ withUsage: true });
  return pools.flatMap(({ spec, usage }) => (usage ? [{ spec, usage, room: countRoom(spec, usage) }] : []));
}
