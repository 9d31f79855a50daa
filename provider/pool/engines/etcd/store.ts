import { isOverlayError } from "../../../errors";
import type { Store, Write } from "../../storage/store";
import { machineTime } from "../clock-check";
import { createOptimisticStore, type ServerStoreOptions } from "../optimistic";
import { ServerClock } from "../server-clock";
import { type ServerEngine, type Snapshot, StoreUnavailable, type Version } from "../server-engine";
import { EtcdClient } from "./client";
import {
  EtcdCommitLog,
  type Keys,
  keysUnder,
  type LastSeen,
  parseHead,
  type RowReader,
  readRowsAt,
} from "./commit-log";
import { FirstRowSearch } from "./first-row";
import { EtcdKv, get, put, valueIs } from "./kv";
import { EtcdLock } from "./lock";
import { readClusterTime } from "./time";
import { type Cluster, parseEtcdUrl } from "./url";

/** The version of the store is the value of one key, `head`, which each commit compares and replaces in its Txn. */

export async function openEtcdStore(url: string, options: ServerStoreOptions = {}): Promise<Store> {
  const { clock, timeouts, onConflict } = options;
  const witness = options.machineTime ?? clock ?? machineTime;
  const cluster = parseEtcdUrl(url);
  if (cluster.isExposed) options.warn?.(`etcd at ${cluster.place} is used without TLS, because of tls=false.`);
  const kv = new EtcdKv(new EtcdClient(cluster), cluster);
  try {
    return createOptimisticStore(await openEngine(kv, cluster, witness, clock), timeouts, onConflict);
  } catch (error) {
    kv.close();
    throw error instanceof StoreUnavailable ? error.cause : error;
  }
}

async function openEngine(
  kv: EtcdKv,
  cluster: Cluster,
  machineTime: () => number,
  clock?: () => number,
): Promise<ServerEngine> {
  const place = `etcd at ${cluster.place}`;
  const keys = keysUnder(cluster.prefix);
  const readOnly = await isReadOnly(kv, keys);
  const serverClock = new ServerClock(60_000);
  const now = clock ?? (() => serverClock.now());
  const time = async (): Promise<number> => {
    const known = now();
    if (known !== undefined) return known;
    const read = await readClusterTime(cluster);
    serverClock.set(read);
    return read;
  };
  const seen: LastSeen = { revision: "0" };
  const firstRows = new FirstRowSearch(kv);
  const log = new EtcdCommitLog(kv, keys, seen, firstRows);
  const lock = new EtcdLock(kv, keys, new EtcdCommitLog(kv, keys, seen, firstRows, true));
  return {
    readUpdate: async (since) => {
      await time();
      return log.readUpdate(since);
    },
    findId: (number) => log.findId(number),
    readRows: (...args) => log.readRows(...args),
    commit: (...args) => log.commit(...args),
    readOnly,
    place,
    machineTime,
    clock: now,
    lock: async (timeoutMs, since) => {
      await time();
      return lock.acquire(timeoutMs, since);
    },
    openSnapshot: async () => {
      await time();
      return openSnapshot({ kv, firstRows }, keys);
    },
    close: async () => kv.close(),
  };
}

/** etcd checks permissions and space before it compares. The comparison never holds, so nothing is written. */
async function isReadOnly(kv: EtcdKv, keys: Keys): Promise<boolean> {
  try {
    await kv.txn([valueIs(keys.head, "never")], [put(keys.head, "never")]);
    return false;
  } catch (error) {
    if (!isOverlayError(error, "STORE_READ_ONLY")) throw error;
    await kv.txn([], [get(keys.head)]);
    return true;
  }
}

async function openSnapshot(reader: RowReader, keys: Keys): Promise<Snapshot> {
  const { kv } = reader;
  const { found, revision } = await kv.txn([], [get(keys.head)]);
  const { parts, ...version } = parseHead(found[0]!);
  return {
    version,
    pendingWrites: parts ? await readParts(kv, keys, revision, version) : [],
    readRows: (ranges) => readRowsAt(reader, keys, revision, ranges),
    close: async () => {},
  };
}

/** The rows of a commit in parts. */
async function readParts(kv: EtcdKv, keys: Keys, revision: string, { number, id }: Version): Promise<Write[]> {
  const parts = { from: keys.part(number, `/${id}/`), to: keys.part(number, `/${id}0`), limit: 0 };
  const [found] = await kv.getAt(revision, [parts]);
  return found!.rows.flatMap(([, text]) => JSON.parse(text) as Write[]);
}
