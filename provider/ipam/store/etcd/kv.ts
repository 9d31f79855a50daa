import type { Compare, Received, RequestOp, Sent } from "./api";
import type { EtcdClient } from "./client";
import { isOutOfRange, translateError } from "./errors";
import type { Cluster } from "./url";

/** The part of etcd's KV API that the engine uses. `end` is exclusive. */
export interface KeyRange {
  key: string;
  end?: string;
  limit?: number;
  keysOnly?: boolean;
}

/** A key with its value, and when it was put. */
export interface Entry {
  key: string;
  value: string;
  revision: number;
}

const rangeEnd = (end?: string) => (end === undefined ? {} : { range_end: end });

export const put = (key: string, value: string): RequestOp => ({ request_put: { key, value } });
export const del = (key: string, end?: string): RequestOp => ({ request_delete_range: { key, ...rangeEnd(end) } });
export const get = (range: KeyRange): RequestOp => ({ request_range: toRequest(range) });

const toRequest = ({ key, end, limit, keysOnly }: KeyRange): Sent<"RangeRequest"> => ({
  key,
  ...rangeEnd(end),
  ...(limit !== undefined && { limit }),
  ...(keysOnly && { keys_only: true }),
});

/** The key was put last at this revision; 0: it is absent. */
export const wasPutAt = (key: string, revision: number): Compare => ({
  ...{ key, target: "MOD", result: "EQUAL", mod_revision: revision },
});
export const isAbsent = (key: string): Compare => wasPutAt(key, 0);
export const isPresent = (key: string): Compare => ({ key, target: "MOD", result: "GREATER", mod_revision: 0 });

/**
 * etcd takes 128 comparisons or operations in a Txn, and in one inside of it as many as those of the outer one leave: so up to `MAX_COMPARES`
 * comparisons, and 60 groups of 64 operations.
 */
export const MAX_COMPARES = 60;
const GROUP = 64;
export const MAX_OPERATIONS = 60 * GROUP;

function grouped(operations: RequestOp[]): RequestOp[] {
  if (operations.length <= GROUP) return operations;
  return Array.from({ length: Math.ceil(operations.length / GROUP) }, (_, i) => ({
    request_txn: { success: operations.slice(i * GROUP, (i + 1) * GROUP) },
  }));
}

export interface TxnResult {
  succeeded: boolean;
  /** What each `get` has found, in their order. */
  found: Entry[][];
  revision: number;
}

const entriesOf = ({ responses }: Received<"TxnResponse">): Entry[][] =>
  responses.flatMap(({ response_range, response_txn }) =>
    response_txn ? entriesOf(response_txn) : response_range ? [response_range.kvs.map(toEntry)] : [],
  );

const toEntry = ({ key, value, mod_revision }: Received<"KeyValue">): Entry => ({
  ...{ key, value, revision: Number(mod_revision) },
});

/** Calls of the client, with errors as `OverlayError`, `Conflict` or `StoreUnavailable`. */
export class EtcdKv {
  constructor(
    private readonly client: EtcdClient,
    private readonly cluster: Cluster,
  ) {}

  /** All of `then` if every comparison holds, otherwise all of `otherwise`. */
  txn(compare: Compare[], then: RequestOp[], otherwise: RequestOp[] = []): Promise<TxnResult> {
    return this.#result("writing", this.client.txn({ compare, success: grouped(then), failure: otherwise }));
  }

  /** All ranges at one revision: the newest one, or this one, by any member that has it. */
  read(ranges: KeyRange[], revision?: number): Promise<TxnResult> {
    const ask = (more: Sent<"RangeRequest">) => {
      const operations = ranges.map((range) => ({ request_range: { ...toRequest(range), ...more } }));
      return this.client.txn({ success: grouped(operations) });
    };
    if (revision === undefined) return this.#result("reading", ask({}));
    const asked = ask({ revision, serializable: true }).catch((error: unknown) =>
      isOutOfRange(error) ? ask({ revision }) : Promise.reject(error),
    );
    return this.#result("reading", asked);
  }

  async #result(doing: "reading" | "writing", asked: Promise<Received<"TxnResponse">>): Promise<TxnResult> {
    try {
      const answer = await asked;
      return { succeeded: answer.succeeded, found: entriesOf(answer), revision: Number(answer.header.revision) };
    } catch (error) {
      throw translateError(error, this.cluster, doing);
    }
  }

  close(): void {
    this.client.close();
  }
}
