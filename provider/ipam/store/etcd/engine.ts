import { isOverlayError, type OverlayError } from "../../../errors";
import { headAhead, judgeClock, machineTime, serverLeapt } from "../clock";
import { store } from "../schema";
import {
  type ClockFinding,
  Conflict,
  type Engine,
  emptyHead,
  LAYOUT,
  type Query,
  type Rows,
  StoreUnavailable,
  type Transaction,
  unknownLayout,
} from "../store";
import { EtcdClient } from "./client";
import { Keys, parseObject, storedOf } from "./keys";
import { type Entry, EtcdKv, get, isAbsent, put, wasPutAt } from "./kv";
import { answerAll, Moment, type Plan, together } from "./queries";
import { ClusterClock } from "./time";
import { EtcdTransaction, finish, type Opening, type Parts } from "./transaction";
import { type Cluster, parseEtcdUrl } from "./url";

/**
 * etcd has no locks that are held from one request to the next: a transaction reads everything at one revision, and its commit compares the
 * revision of the row of the store. `keys.ts` has the keys, `transaction.ts` what a commit is.
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
  const { patience = 10 } = options;
  const parts = { kv, keys, patience: patience * 1000 };
  try {
    return new EtcdEngine(parts, cluster, await prepareStore(kv, keys, `etcd at ${cluster.place}`), options);
  } catch (error) {
    kv.close();
    throw error instanceof StoreUnavailable ? error.cause : error;
  }
}

const openingOf = (entry: Entry | undefined): Opening => {
  if (!entry) return { head: emptyHead() };
  const { one: _, ...head } = store.decode(parseObject(entry.value));
  return { head, entry };
};

/** Makes the store if there is none. Returns why nothing can be written, if so: etcd checks permissions and space before it compares. */
async function prepareStore(kv: EtcdKv, keys: Keys, place: string): Promise<OverlayError | undefined> {
  const check = (found: Entry[][]) => {
    const entry = found[0]?.[0];
    const layout = Number(entry ? parseObject(entry.value).layout : LAYOUT);
    if (layout > LAYOUT) throw unknownLayout(place, layout);
  };
  const row = JSON.stringify(storedOf(store, { ...emptyHead(), one: 1 }));
  try {
    check((await kv.txn([isAbsent(keys.store)], [put(keys.store, row)], [get({ key: keys.store })])).found);
    return undefined;
  } catch (error) {
    if (!isOverlayError(error, "STORE_READ_ONLY")) throw error;
    check((await kv.read([{ key: keys.store }])).found);
    return error;
  }
}

class EtcdEngine implements Engine {
  readonly place: string;
  readonly #clock: ClusterClock;
  readonly #machineTime: () => number;
  /** The time of the last commit that was seen, if the clock was behind it. */
  #lastCommit = 0;

  constructor(
    private readonly parts: Parts,
    cluster: Cluster,
    private readonly refusal: OverlayError | undefined,
    { clock, machineTime: witness = clock ?? machineTime }: EtcdOptions,
  ) {
    this.place = `etcd at ${cluster.place}`;
    this.#clock = new ClusterClock(cluster, clock);
    this.#machineTime = witness;
  }

  get readOnly(): boolean {
    return this.refusal !== undefined;
  }

  async begin(queries: Query[], given?: string[] | "all"): Promise<Transaction> {
    if (given && this.refusal) throw this.refusal;
    const locks = given === "all" ? [] : (given ?? []);
    const asked = [...queries, ...locks.map((name): Query => ({ of: "pool", name }))];
    const { kv, keys } = this.parts;
    const time = await this.#clock.now();
    for (;;) {
      // The clocks of processes differ by up to a second. If one is further behind the last commit, that is the time.
      const moment = new Moment(kv, keys, Math.max(time, this.#lastCommit));
      const [opening, rows] = await moment.run(
        together<[Opening, Rows]>([this.#readOpening(), answerAll(moment, asked)]),
      );
      if (await this.#finishPending(opening)) continue;
      const { at } = opening.head;
      const now = Math.max(time, at);
      if (judgeClock(now, [this.#machineTime(), at]) === "leap")
        throw serverLeapt(this.place, now, this.#machineTime(), at);
      this.#lastCommit = at > time ? at : 0;
      if (Math.abs(now - moment.now) <= 1000) return new EtcdTransaction(this.parts, moment, opening, now, rows, locks);
    }
  }

  *#readOpening(): Plan<Opening> {
    const [[entry] = []] = yield [{ key: this.parts.keys.store }];
    return openingOf(entry);
  }

  async #finishPending({ entry }: Opening): Promise<boolean> {
    const row = parseObject(entry?.value ?? "");
    if (!entry || row.pending === undefined) return false;
    if (this.readOnly) throw new Conflict();
    await finish(this.parts.kv, this.parts.keys, row, entry.revision);
    return true;
  }

  /** `repair`: the time of the last commit becomes that of the clock, although it is later. */
  async checkClock(repair: boolean): Promise<ClockFinding | undefined> {
    const { kv, keys } = this.parts;
    const time = await this.#clock.now();
    const [[entry] = []] = (await kv.read([{ key: keys.store }])).found;
    const { head } = openingOf(entry);
    const machine = this.#machineTime();
    const verdict = judgeClock(time, [machine, head.at], head.at);
    if (verdict === "sound") return undefined;
    if (verdict === "leap") return { problem: serverLeapt(this.place, time, machine, head.at).what, repairable: false };
    const row = JSON.stringify({ ...parseObject(entry!.value), at: time });
    if (repair) await kv.txn([wasPutAt(keys.store, entry!.revision)], [put(keys.store, row)]);
    return { problem: headAhead(this.place, head.at, time), repairable: true };
  }

  async close(): Promise<void> {
    this.parts.kv.close();
  }
}
