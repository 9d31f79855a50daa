import type { Compare, KeyValue, RequestOp, ResponseOp, TxnRequest, TxnResponse } from "./api";
import type { EtcdClient } from "./client";
import { isOutOfRange, translateError } from "./errors";
import type { Cluster } from "./url";

/** The part of etcd's KV API that the engine uses. Keys are strings of bytes; `end` is exclusive. */

const bytes = (key: string): Buffer => Buffer.from(key, "latin1");
const rangeEnd = (end?: string) => (end === undefined ? {} : { range_end: bytes(end) });

export interface KeyRange {
  key: string;
  end?: string;
  /** 0: all. */
  limit?: number;
  /** Those that were put last come last. The default is the order of the keys. */
  orderBy?: "MOD" | "VALUE" | "CREATE";
  keysOnly?: boolean;
  /** Only keys that were put at this revision or later. */
  since?: number;
}

/** A key with its value, and when and how often it was put. */
export interface Entry {
  key: string;
  value: string;
  revision: number;
  puts: number;
}

export const put = (key: string, value: string, lease?: string): RequestOp => ({
  request_put: { key: bytes(key), value: Buffer.from(value), ...(lease !== undefined && { lease }) },
});
export const del = (key: string, end?: string): RequestOp => ({
  request_delete_range: { key: bytes(key), ...rangeEnd(end) },
});
export const get = ({ key, end, limit = 0, orderBy, keysOnly, since }: KeyRange): RequestOp => ({
  request_range: {
    key: bytes(key),
    ...rangeEnd(end),
    limit,
    ...(orderBy && { sort_order: "ASCEND", sort_target: orderBy }),
    ...(keysOnly && { keys_only: true }),
    ...(since !== undefined && { min_mod_revision: String(since) }),
  },
});
/** One of two lists of operations, within a Txn. */
export const choose = (compare: Compare[], success: RequestOp[], failure: RequestOp[] = []): RequestOp => ({
  request_txn: { compare, success, failure },
});

const compare = (key: string, end: string | undefined, rest: Omit<Compare, "key">): Compare => ({
  key: bytes(key),
  ...rangeEnd(end),
  ...rest,
});
/** With `end`: all keys of the range are absent. */
export const isAbsent = (key: string, end?: string): Compare =>
  compare(key, end, { target: "CREATE", result: "EQUAL", create_revision: 0 });
export const isPresent = (key: string): Compare =>
  compare(key, undefined, { target: "CREATE", result: "NOT_EQUAL", create_revision: 0 });
/** The key was put last at this revision; 0: it is absent. */
export const wasPutAt = (key: string, revision: number): Compare =>
  compare(key, undefined, { target: "MOD", result: "EQUAL", mod_revision: String(revision) });
/** No key of the range was put after this revision. */
export const isUnchangedSince = (key: string, end: string | undefined, revision: number): Compare =>
  compare(key, end, { target: "MOD", result: "LESS", mod_revision: String(revision + 1) });
/** The key was put so often since it was created. */
export const wasPutTimes = (key: string, times: number): Compare =>
  compare(key, undefined, { target: "VERSION", result: "EQUAL", version: times });

const toEntry = ({ key, value, mod_revision, version }: KeyValue): Entry => ({
  key: key.toString("latin1"),
  value: value.toString(),
  revision: Number(mod_revision),
  puts: Number(version),
});

export interface TxnResult {
  succeeded: boolean;
  /** What each `get` has found, in their order; those inside of `choose` are left out. */
  found: Entry[][];
  revision: number;
}

const entriesOf = (responses: ResponseOp[]): Entry[][] =>
  responses.flatMap(({ response_range }) => (response_range ? [response_range.kvs.map(toEntry)] : []));

/** Calls of the client, with errors as `OverlayError`, `Conflict` or `StoreUnavailable`. */
export class EtcdKv {
  constructor(
    private readonly client: EtcdClient,
    private readonly cluster: Cluster,
  ) {}

  /** All of `then` if every comparison holds, otherwise all of `otherwise`. */
  async txn(compare: Compare[], then: RequestOp[], otherwise: RequestOp[] = []): Promise<TxnResult> {
    const reading = [...then, ...otherwise].every(({ request_range }) => request_range);
    const request: TxnRequest = { compare, success: then, failure: otherwise };
    const { header, succeeded, responses } = await this.#translate(reading, this.client.txn(request));
    return { succeeded, found: entriesOf(responses), revision: Number(header.revision) };
  }

  /** At a revision, by any member that has it: the past does not change. */
  async getAt(revision: number, ranges: KeyRange[]): Promise<Entry[][]> {
    const ask = (serializable: boolean): Promise<TxnResponse> => {
      const at = (range: KeyRange) => ({ ...get(range).request_range!, revision: String(revision), serializable });
      return this.client.txn({ success: ranges.map((range) => ({ request_range: at(range) })) });
    };
    const asked = ask(true).catch((error: unknown) => (isOutOfRange(error) ? ask(false) : Promise.reject(error)));
    return entriesOf((await this.#translate(true, asked)).responses);
  }

  async grantLease(seconds: number): Promise<string> {
    return (await this.#translate(false, this.client.grantLease(seconds))).ID;
  }

  /** Renews it once; its remaining seconds, 0 if it has expired. */
  keepLeaseAlive(id: string): Promise<number> {
    return this.#translate(false, this.client.keepLeaseAlive(id));
  }

  /** Returns when the key has been deleted after a revision, when that revision was compacted away, or when `signal` aborts. */
  async waitForDelete(key: string, revision: number, signal: AbortSignal): Promise<void> {
    const waiting = async () => {
      const request = { key: bytes(key), start_revision: String(revision + 1) };
      for await (const { events } of this.client.watch(request, signal))
        if (events.some(({ type }) => type === "DELETE")) return;
    };
    const ended = waiting().catch((error: unknown) => (isOutOfRange(error) ? undefined : Promise.reject(error)));
    await this.#translate(true, ended);
  }

  close(): void {
    this.client.close();
  }

  async #translate<T>(reading: boolean, answer: Promise<T>): Promise<T> {
    try {
      return await answer;
    } catch (error) {
      throw translateError(error, this.cluster, reading ? "reading" : "writing");
    }
  }
}
