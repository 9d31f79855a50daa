import type { Row } from "../../storage/store";
import type { KeyRange } from "../server-engine";
import type { Compare, KeyValue, RequestOp, TxnRequest, TxnResponse } from "./api";
import type { EtcdClient } from "./client";
import { isOutOfRange, translateError } from "./errors";
import type { Cluster } from "./url";

/** The part of etcd's KV API that the store uses. Keys are strings of bytes; `end` is exclusive. */

const bytes = (key: string): Buffer => Buffer.from(key, "latin1");
const rangeEnd = (end?: string) => (end === undefined ? {} : { range_end: bytes(end) });

type GetOp = Required<Pick<RequestOp, "request_range">>;

export const put = (key: string, value: string, lease?: string): RequestOp => ({
  request_put: { key: bytes(key), value: Buffer.from(value), ...(lease !== undefined && { lease }) },
});
export const del = (key: string, end?: string): RequestOp => ({
  request_delete_range: { key: bytes(key), ...rangeEnd(end) },
});
export const get = (key: string, end?: string, { limit = 0, oldestFirst = false } = {}): GetOp => ({
  request_range: {
    key: bytes(key),
    ...rangeEnd(end),
    limit,
    ...(oldestFirst && { sort_order: "ASCEND", sort_target: "CREATE" }),
  },
});

/** undefined: the key is absent. */
export const valueIs = (key: string, value: string | undefined): Compare =>
  value === undefined
    ? isAbsent(key)
    : { key: bytes(key), target: "VALUE", result: "EQUAL", value: Buffer.from(value) };
/** With `end`: all keys of the range are absent. */
export const isAbsent = (key: string, end?: string): Compare => ({
  key: bytes(key),
  ...rangeEnd(end),
  target: "CREATE",
  result: "EQUAL",
  create_revision: 0,
});

const toRow = ({ key, value }: KeyValue): Row => [key.toString("latin1"), value.toString()];

export interface TxnResult {
  succeeded: boolean;
  /** The rows of each `get`, in their order. */
  found: Row[][];
  revision: string;
}

export interface RangeResult {
  rows: Row[];
  /** Of the whole range, whatever its limit. */
  count: number;
}

/** Calls of the client, with errors as `OverlayError`. */
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
    const found = responses.flatMap(({ response_range }) => (response_range ? [response_range.kvs.map(toRow)] : []));
    return { succeeded, found, revision: header.revision };
  }

  /** At a revision, by any member that has it: the past does not change. */
  async getAt(revision: string, ranges: KeyRange[]): Promise<RangeResult[]> {
    const ask = (serializable: boolean): Promise<TxnResponse> => {
      const at = (range: KeyRange) => ({ ...get(range.from, range.to, range).request_range, revision, serializable });
      return this.client.txn({ success: ranges.map((range) => ({ request_range: at(range) })) });
    };
    const asked = ask(true).catch((error: unknown) => (isOutOfRange(error) ? ask(false) : Promise.reject(error)));
    const { responses } = await this.#translate(true, asked);
    return responses.map(({ response_range }) => ({
      rows: response_range!.kvs.map(toRow),
      count: Number(response_range!.count),
    }));
  }

  async grantLease(seconds: number): Promise<string> {
    return (await this.#translate(false, this.client.grantLease(seconds))).ID;
  }

  /** Renews it once; its remaining seconds, 0 if it has expired. */
  keepLeaseAlive(id: string): Promise<number> {
    return this.#translate(false, this.client.keepLeaseAlive(id));
  }

  /** Returns when the key has been deleted after a revision, when that revision was compacted away, or when `signal` aborts. */
  async waitForDelete(key: string, revision: string, signal: AbortSignal): Promise<void> {
    const start_revision = String(BigInt(revision) + 1n);
    const waiting = async () => {
      for await (const { events } of this.client.watch({ key: bytes(key), start_revision }, signal))
        if (events.some(({ type }) => type === "DELETE")) return;
    };
    await this.#translate(
      true,
      waiting().catch((error: unknown) => (isOutOfRange(error) ? undefined : Promise.reject(error))),
    );
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
