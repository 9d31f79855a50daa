import type { Row } from "../store";
import type { Compare, KeyValue, RequestOp, TxnRequest, TxnResponse } from "./etcd-api";
import type { EtcdClient } from "./etcd-client";
import { isOutOfRange, translated } from "./etcd-errors";
import type { Cluster } from "./etcd-url";
import type { Span } from "./view";

/** The few words of etcd that we speak. Keys are strings of bytes; `end` is the first key that is not meant. */

const bytes = (key: string): Buffer => Buffer.from(key, "latin1");
const until = (end?: string) => (end === undefined ? {} : { range_end: bytes(end) });

type Looking = Required<Pick<RequestOp, "request_range">>;

export const put = (key: string, value: string, lease?: string): RequestOp => ({
  request_put: { key: bytes(key), value: Buffer.from(value), ...(lease !== undefined && { lease }) },
});
export const remove = (key: string, end?: string): RequestOp => ({
  request_delete_range: { key: bytes(key), ...until(end) },
});
export const look = (key: string, end?: string, { limit = 0, oldestFirst = false } = {}): Looking => ({
  request_range: {
    key: bytes(key),
    ...until(end),
    limit,
    ...(oldestFirst && { sort_order: "ASCEND", sort_target: "CREATE" }),
  },
});

/** undefined: it is not there. */
export const isStill = (key: string, value: string | undefined): Compare =>
  value === undefined
    ? isNotThere(key)
    : { key: bytes(key), target: "VALUE", result: "EQUAL", value: Buffer.from(value) };
/** With an end: nothing of it is there. */
export const isNotThere = (key: string, end?: string): Compare => ({
  key: bytes(key),
  ...until(end),
  target: "CREATE",
  result: "EQUAL",
  create_revision: 0,
});

const rowOf = ({ key, value }: KeyValue): Row => [key.toString("latin1"), value.toString()];

export interface Answer {
  succeeded: boolean;
  /** What each `look` found, in their order. */
  found: Row[][];
  /** The state of the whole store that this is true of. */
  revision: string;
}

export interface Found {
  rows: Row[];
  /** How many there are in the whole span, whatever its limit. */
  count: number;
}

/** Calls of the client, with their errors in our words. */
export class Wire {
  constructor(
    private readonly client: EtcdClient,
    private readonly cluster: Cluster,
  ) {}

  /** All of `then` if every comparison holds, otherwise all of `otherwise`. */
  async txn(compare: Compare[], then: RequestOp[], otherwise: RequestOp[] = []): Promise<Answer> {
    const reading = [...then, ...otherwise].every(({ request_range }) => request_range);
    const request: TxnRequest = { compare, success: then, failure: otherwise };
    const { header, succeeded, responses } = await this.#translate(reading, this.client.txn(request));
    const found = responses.flatMap(({ response_range }) => (response_range ? [response_range.kvs.map(rowOf)] : []));
    return { succeeded, found, revision: header.revision };
  }

  /** As it was at a revision. Any member may answer that has come so far, since the past does not change. */
  async past(revision: string, spans: Span[]): Promise<Found[]> {
    const ask = (serializable: boolean): Promise<TxnResponse> => {
      const at = (span: Span) => ({ ...look(span.from, span.to, span).request_range, revision, serializable });
      return this.client.txn({ success: spans.map((span) => ({ request_range: at(span) })) });
    };
    const asked = ask(true).catch((error: unknown) => (isOutOfRange(error) ? ask(false) : Promise.reject(error)));
    const { responses } = await this.#translate(true, asked);
    return responses.map(({ response_range }) => ({
      rows: response_range!.kvs.map(rowOf),
      count: Number(response_range!.count),
    }));
  }

  /** What is put on it vanishes after so many seconds. */
  async lease(seconds: number): Promise<string> {
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
      throw translated(error, this.cluster, reading ? "reading" : "writing");
    }
  }
}
