import { isOverlayError } from "../../errors";
import type { Store, Tx, Write } from "../store";
import { HeardClock } from "./clock";
import { EtcdClient } from "./etcd-client";
import { EtcdJournal, headOf, type Keys, keysUnder, type Reading, rowsAt, type Seen } from "./etcd-journal";
import { EtcdLock } from "./etcd-lock";
import { Seeker } from "./etcd-seek";
import { timeAt } from "./etcd-time";
import { type Cluster, clusterOf } from "./etcd-url";
import { isStill, look, put, Wire } from "./etcd-wire";
import { Away, type Engine, type Version } from "./journal";
import { Known } from "./known";
import { optimisticStore, type Patience, timeAfter } from "./optimistic";
import { machineTime } from "./store-clock";
import { runOn, type Span, settled } from "./view";

/**
 * The version of the store is the value of one key, `head`, which every commit compares and replaces in one Txn. So that
 * Txn checks everything that was read, ranges and what was not in them too, with one comparison instead of one for each
 * read: etcd takes 128 of them at most, and comparing ranges does not notice what was deleted.
 */
export interface EtcdOptions {
  /** For tests: instead of the members' time. */
  clock?: () => number;
  /** By what the clock is checked; by default this machine's time, and nothing else where a clock is given. */
  machineTime?: () => number;
  patience?: Patience;
  warn?: (text: string) => void;
}

export async function etcdStore(url: string, options: EtcdOptions = {}): Promise<Store> {
  const { clock, patience } = options;
  const witness = options.machineTime ?? clock ?? machineTime;
  const cluster = clusterOf(url);
  if (cluster.isExposed) options.warn?.(`etcd at ${cluster.place} is used without TLS, because of tls=false.`);
  const wire = new Wire(new EtcdClient(cluster), cluster);
  try {
    return optimisticStore(await openEngine(wire, cluster, witness, clock), patience);
  } catch (error) {
    wire.close();
    throw error instanceof Away ? error.cause : error;
  }
}

async function openEngine(
  wire: Wire,
  cluster: Cluster,
  machineTime: () => number,
  clock?: () => number,
): Promise<Engine> {
  const place = `etcd at ${cluster.place}`;
  const keys = keysUnder(cluster.prefix);
  const readOnly = await refusesWrites(wire, keys);
  const heard = new HeardClock(60_000);
  const now = clock ?? (() => heard.now());
  const time = async (): Promise<number> => {
    const known = now();
    if (known !== undefined) return known;
    const asked = await timeAt(cluster);
    heard.hear(asked);
    return asked;
  };
  const seen: Seen = { revision: "0" };
  const seeker = new Seeker(wire);
  const journal = new EtcdJournal(wire, keys, seen, seeker);
  const inTurn = new EtcdJournal(wire, keys, seen, seeker, true);
  const lock = new EtcdLock(wire, keys, inTurn);
  return {
    news: async (since) => {
      await time();
      return journal.news(since);
    },
    findId: (number) => journal.findId(number),
    rows: (...args) => journal.rows(...args),
    commit: (...args) => journal.commit(...args),
    readOnly,
    place,
    machineTime,
    clock: now,
    turn: async (patience, since) => {
      await time();
      return lock.acquire(patience, since);
    },
    read: async (work) => {
      const now = await time();
      return readOn({ wire, seeker }, keys, (head) => timeAfter({ place, machineTime }, now, head), work);
    },
    close: async () => wire.close(),
  };
}

/** etcd looks at permissions and space before it compares: with a comparison that never holds, nothing is written. */
async function refusesWrites(wire: Wire, keys: Keys): Promise<boolean> {
  try {
    await wire.txn([isStill(keys.head, "never")], [put(keys.head, "never")]);
    return false;
  } catch (error) {
    if (!isOverlayError(error, "STORE_READ_ONLY")) throw error;
    await wire.txn([], [look(keys.head)]);
    return true;
  }
}

async function readOn<T>(
  on: Reading,
  keys: Keys,
  timeOf: (head: Version) => number,
  work: (tx: Tx) => Promise<T>,
): Promise<T> {
  const { wire } = on;
  const { found, revision } = await wire.txn([], [look(keys.head)]);
  const { parts, ...head } = headOf(found[0]!);
  const fetch = (spans: Span[]) => rowsAt(on, keys, revision, spans);
  const unwritten = parts ? await partsAt(wire, keys, revision, head) : [];
  const { outcome } = await runOn({ known: new Known(), time: timeOf(head), fetch, unwritten }, work);
  return settled(outcome);
}

/** Rows that are not in their places yet. */
async function partsAt(wire: Wire, keys: Keys, revision: string, { number, id }: Version): Promise<Write[]> {
  const parts = { from: keys.part(number, `/${id}/`), to: keys.part(number, `/${id}0`), limit: 0 };
  const [found] = await wire.past(revision, [parts]);
  return found!.rows.flatMap(([, text]) => JSON.parse(text) as Write[]);
}
