import { randomBytes } from "node:crypto";
import { isOverlayError, type OverlayError } from "../../../errors";
import { headAhead, judgeClock, machineTime, serverLeapt } from "../clock";
import { pools } from "../schema";
import {
  type ClockFinding,
  Conflict,
  type Engine,
  LAYOUT,
  type Query,
  type Rows,
  StoreUnavailable,
  type Transaction,
  unknownLayout,
} from "../store";
import { EtcdClient } from "./client";
import { Committer } from "./commit";
import { headText, type Opening, openingOf, readOpening, type StoreRow } from "./head";
import { Keys, parseObject, rowOf } from "./keys";
import { type Entry, EtcdKv, get, isAbsent, put, wasPutAt } from "./kv";
import { EtcdLock } from "./lock";
import { answerAll, Moment, readLocked, together } from "./queries";
import { ClusterClock } from "./time";
import { EtcdTransaction } from "./transaction";
import { type Cluster, parseEtcdUrl } from "./url";
import { emptyPool, type LockedPool } from "./writes";

/**
 * etcd has no locks that are held from one request to the next: a transaction reads everything at one revision, and its commit compares the
 * revisions of what it has locked. `keys.ts` has the keys, `commit.ts` what a commit is.
 */
export interface EtcdOptions {
  /** For tests: replaces the time of the cluster. */
  clock?: () => number;
  /** The clock that it is compared with. Default: this machine's, or `clock` if it is given. */
  machineTime?: () => number;
  /** How long to ask for the outcome of a commit whose answer was lost, in seconds. */
  patience?: number;
  warn?: (text: string) => void;
}

export async function openEtcd(url: string, options: EtcdOptions = {}): Promise<Engine> {
  const cluster = parseEtcdUrl(url);
  if (cluster.isExposed) options.warn?.(`etcd at ${cluster.place} is used without TLS, because of tls=false.`);
  const kv = new EtcdKv(new EtcdClient(cluster), cluster);
  const keys = new Keys(cluster.prefix);
  try {
    return new EtcdEngine(kv, keys, cluster, await prepareStore(kv, keys, `etcd at ${cluster.place}`), options);
  } catch (error) {
    kv.close();
    throw error instanceof StoreUnavailable ? error.cause : error;
  }
}

/** Makes the store if there is none. Returns why nothing can be written, if so: etcd checks permissions and space before it compares. */
async function prepareStore(kv: EtcdKv, keys: Keys, place: string): Promise<OverlayError | undefined> {
  const row: StoreRow = { id: randomBytes(16).toString("hex"), layout: LAYOUT, offset: 0, eventOffset: 0 };
  const check = (store: Entry | undefined) => {
    const { layout } = openingOf(store && parseObject(store.value)).head;
    if (layout > LAYOUT) throw unknownLayout(place, layout);
  };
  try {
    const { found } = await kv.txn(
      [isAbsent(keys.store)],
      [put(keys.store, JSON.stringify(row))],
      [get({ key: keys.store })],
    );
    check(found[0]?.[0]);
    return undefined;
  } catch (error) {
    if (!isOverlayError(error, "STORE_READ_ONLY")) throw error;
    check((await kv.read([{ key: keys.store }])).found[0]![0]);
    return error;
  }
}

/** How long to wait for the lock. */
const LOCK_TIMEOUT_MS = 30_000;
/** For so long after a conflict, transactions take the lock before they read: in a crowd most of the others conflict again. */
const CROWDED_MS = 500;

class EtcdEngine implements Engine {
  readonly hasEventGaps = true;
  readonly place: string;
  readonly #clock: ClusterClock;
  readonly #machineTime: () => number;
  readonly #lock: EtcdLock;
  readonly #committer: Committer;
  /** The time of the last commit that was seen, if the clock was behind it. */
  #lastCommit = 0;
  #crowdedUntil = 0;

  constructor(
    private readonly kv: EtcdKv,
    private readonly keys: Keys,
    cluster: Cluster,
    private readonly refusal: OverlayError | undefined,
    { clock, machineTime: witness = clock ?? machineTime, patience = 10 }: EtcdOptions,
  ) {
    this.place = `etcd at ${cluster.place}`;
    this.#clock = new ClusterClock(cluster, clock);
    this.#machineTime = witness;
    this.#lock = new EtcdLock(kv, keys);
    this.#committer = new Committer(kv, keys, patience * 1000);
  }

  get readOnly(): boolean {
    return this.refusal !== undefined;
  }

  async begin(queries: Query[], locks?: string[] | "all"): Promise<Transaction> {
    if (locks && this.refusal) throw this.refusal;
    // Each commit compares the row of the store: one that changes it has the whole store for itself.
    const names = locks === "all" ? [] : (locks ?? []);
    if (names.length === 0 || performance.now() > this.#crowdedUntil) return this.#begin(queries, names);
    const unlock = await this.lock();
    return this.#begin(queries, names).catch(async (error: unknown) => {
      await unlock();
      throw error;
    });
  }

  async #begin(queries: Query[], names: string[]): Promise<Transaction> {
    const { kv, keys } = this;
    const time = await this.#clock.now();
    for (;;) {
      // The clocks of processes differ by up to a second. If one is further behind the last commit, that is the time.
      const assumed = Math.max(time, this.#lastCommit);
      const moment = new Moment(kv, keys, assumed);
      const [{ row, storeRevision, head }, locked, rows] = await moment.run(
        together<[Opening, LockedPool[], Rows]>([
          readOpening(moment),
          together(names.map((name) => readLocked(moment, name))),
          answerAll(moment, queries),
        ]),
      );
      if (row.pending !== undefined) {
        if (this.readOnly) throw new Conflict();
        await this.#committer.finish(row, storeRevision);
        continue;
      }
      const { at } = head;
      const now = Math.max(time, at);
      if (judgeClock(now, [this.#machineTime(), at]) === "leap")
        throw serverLeapt(this.place, now, this.#machineTime(), at);
      this.#lastCommit = at > time ? at : 0;
      if (Math.abs(now - assumed) > 1000) continue;
      const onConflict = () => {
        this.#crowdedUntil = performance.now() + CROWDED_MS;
      };
      const parts = { kv, lock: this.#lock, committer: this.#committer, onConflict };
      return new EtcdTransaction(parts, moment, now, locked, withPools(rows, locked));
    }
  }

  lock(): Promise<() => Promise<void>> {
    return this.#lock.acquire(LOCK_TIMEOUT_MS);
  }

  /** `repair`: commits with the time of the clock, although the last commit has a later time. */
  async checkClock(repair: boolean): Promise<ClockFinding | undefined> {
    const time = await this.#clock.now();
    const moment = new Moment(this.kv, this.keys, time);
    const { head, headRevision } = await moment.run(readOpening(moment));
    const machine = this.#machineTime();
    const verdict = judgeClock(time, [machine, head.at], head.at);
    if (verdict === "sound") return undefined;
    if (verdict === "leap") return { problem: serverLeapt(this.place, time, machine, head.at).what, repairable: false };
    const value = headText({ at: time, last: head.lastEvent });
    if (repair) await this.kv.txn([wasPutAt(this.keys.head, headRevision)], [put(this.keys.head, value)]);
    return { problem: headAhead(this.place, head.at, time), repairable: true };
  }

  async close(): Promise<void> {
    this.kv.close();
  }
}

/** Also the rows of locked pools. Those that have none get one if the transaction writes. */
const withPools = (rows: Rows, locked: LockedPool[]): Rows => {
  if (locked.length === 0) return rows;
  const found = locked.map(({ name, entry }) => (entry ? rowOf(pools, entry) : emptyPool(name)));
  const names = new Set(locked.map(({ name }) => name));
  return { ...rows, pools: [...found, ...(rows.pools ?? []).filter(({ name }) => !names.has(name))] };
};
