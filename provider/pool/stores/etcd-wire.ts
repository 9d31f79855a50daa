import type { Etcd3, ICompare, IKeyValue, IRequestOp } from "etcd3";
import type { Row } from "../store";
import { isOutOfRange, translated } from "./etcd-errors";
import type { Cluster } from "./etcd-url";
import type { Span } from "./view";

/** The few words of etcd that we speak. Keys are strings of bytes; `end` is the first key that is not meant. */

const bytes = (key: string): Buffer => Buffer.from(key, "latin1");
const until = (end?: string) => (end === undefined ? {} : { range_end: bytes(end) });

export const put = (key: string, value: string): IRequestOp => ({
  request_put: { key: bytes(key), value: Buffer.from(value) },
});
export const remove = (key: string, end?: string): IRequestOp => ({
  request_delete_range: { key: bytes(key), ...until(end) },
});
export const look = (key: string, end?: string, limit = 0): IRequestOp => ({
  request_range: { key: bytes(key), ...until(end), limit },
});

/** undefined: it is not there. */
export const isStill = (key: string, value: string | undefined): ICompare =>
  value === undefined
    ? isNotThere(key)
    : { key: bytes(key), target: "Value", result: "Equal", value: Buffer.from(value) };
/** With an end: nothing of it is there. */
export const isNotThere = (key: string, end?: string): ICompare => ({
  key: bytes(key),
  ...until(end),
  target: "Create",
  result: "Equal",
  create_revision: 0,
});

const rowOf = ({ key, value }: IKeyValue): Row => [key.toString("latin1"), value.toString()];

export interface Answer {
  succeeded: boolean;
  /** What each `look` found, in their order. */
  found: Row[][];
  /** The state of the whole store that this is true of. */
  revision: string;
}

export class Wire {
  constructor(
    private readonly client: Etcd3,
    private readonly cluster: Cluster,
  ) {}

  /** All of `then` if every comparison holds, otherwise all of `otherwise`. */
  async txn(compare: ICompare[], then: IRequestOp[], otherwise: IRequestOp[] = []): Promise<Answer> {
    const reading = [...then, ...otherwise].every(({ request_range }) => request_range);
    const answer = await this.#say(reading, () => this.client.kv.txn({ compare, success: then, failure: otherwise }));
    const found = answer.responses.flatMap(({ response_range }) =>
      response_range ? [response_range.kvs.map(rowOf)] : [],
    );
    return { succeeded: answer.succeeded, found, revision: answer.header.revision };
  }

  /** As it was at a revision. Any member may answer that has come so far, since the past does not change. */
  async past(revision: string, spans: Span[]): Promise<Row[][]> {
    const ask = (serializable: boolean) => {
      const at = (span: Span) => ({ ...look(span.from, span.to, span.limit).request_range, revision, serializable });
      return this.client.kv.txn({ success: spans.map((span) => ({ request_range: at(span) })) });
    };
    const { responses } = await this.#say(true, () =>
      ask(true).catch((error: unknown) => (isOutOfRange(error) ? ask(false) : Promise.reject(error))),
    );
    return responses.map(({ response_range }) => response_range.kvs.map(rowOf));
  }

  /** What is put on it vanishes after so many seconds. */
  async lease(seconds: number): Promise<string> {
    return (await this.#say(false, () => this.client.leaseClient.leaseGrant({ TTL: seconds }))).ID;
  }

  async putOn(lease: string, key: string): Promise<void> {
    await this.#say(false, () => this.client.kv.put({ key: bytes(key), value: Buffer.of(), lease }));
  }

  /** Keys in the order of their creation, as some member knows it: it may be a little behind. */
  async byAge(key: string, end: string): Promise<string[]> {
    const request = { key: bytes(key), range_end: bytes(end), keys_only: true, serializable: true };
    const { kvs } = await this.#say(true, () => this.client.kv.range(request));
    const age = ({ create_revision }: IKeyValue) => Number(create_revision);
    return kvs.sort((a, b) => age(a) - age(b)).map(({ key }) => key.toString("latin1"));
  }

  #say<T>(reading: boolean, call: () => Promise<T>): Promise<T> {
    return call().catch((error: unknown) => {
      throw translated(error, this.cluster, reading ? "reading" : "writing");
    });
  }
}
