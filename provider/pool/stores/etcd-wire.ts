import type { Etcd3, ICompare, IKeyValue, IRequestOp } from "etcd3";
import type { Row } from "../store";
import { isOutOfRange, translated } from "./etcd-errors";
import type { Cluster } from "./etcd-url";
import { Away } from "./journal";
import type { Span } from "./view";

/** The few words of etcd that we speak. Keys are strings of bytes; `end` is the first key that is not meant. */

const bytes = (key: string): Buffer => Buffer.from(key, "latin1");
const until = (end?: string) => (end === undefined ? {} : { range_end: bytes(end) });

export const put = (key: string, value: string, lease?: string): IRequestOp => ({
  request_put: { key: bytes(key), value: Buffer.from(value), ...(lease !== undefined && { lease }) },
});
export const remove = (key: string, end?: string): IRequestOp => ({
  request_delete_range: { key: bytes(key), ...until(end) },
});
export const look = (key: string, end?: string, limit = 0): IRequestOp => ({
  request_range: { key: bytes(key), ...until(end), limit },
});
/** As the member whom we ask knows it, who may be a little behind. */
export const glance = ({ request_range }: IRequestOp): IRequestOp => ({
  request_range: { ...request_range, serializable: true },
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

export interface Found {
  rows: Row[];
  /** How many there are in the whole span, whatever its limit. */
  count: number;
}

export class Wire {
  /** Whom we talk to: another one for each process, and as long as it answers. */
  #member: number;

  constructor(
    private readonly members: Etcd3[],
    private readonly cluster: Cluster,
  ) {
    this.#member = Math.floor(Math.random() * members.length);
  }

  /** All of `then` if every comparison holds, otherwise all of `otherwise`. */
  async txn(compare: ICompare[], then: IRequestOp[], otherwise: IRequestOp[] = []): Promise<Answer> {
    const reading = [...then, ...otherwise].every(({ request_range }) => request_range);
    const answer = await this.#say(reading, ({ kv }) => kv.txn({ compare, success: then, failure: otherwise }));
    const found = answer.responses.flatMap(({ response_range }) =>
      response_range ? [response_range.kvs.map(rowOf)] : [],
    );
    return { succeeded: answer.succeeded, found, revision: answer.header.revision };
  }

  /** As it was at a revision. Any member may answer that has come so far, since the past does not change. */
  async past(revision: string, spans: Span[]): Promise<Found[]> {
    const ask = ({ kv }: Etcd3, serializable: boolean) => {
      const at = (span: Span) => ({ ...look(span.from, span.to, span.limit).request_range, revision, serializable });
      return kv.txn({ success: spans.map((span) => ({ request_range: at(span) })) });
    };
    const { responses } = await this.#say(true, (member) =>
      ask(member, true).catch((error: unknown) => (isOutOfRange(error) ? ask(member, false) : Promise.reject(error))),
    );
    return responses.map(({ response_range: { kvs, count } }) => ({ rows: kvs.map(rowOf), count: Number(count) }));
  }

  /** What is put on it vanishes after so many seconds. */
  async lease(seconds: number): Promise<string> {
    return (await this.#say(false, ({ leaseClient }) => leaseClient.leaseGrant({ TTL: seconds }))).ID;
  }

  close(): void {
    for (const member of this.members) member.close();
  }

  /** Asks one member after the other until one answers. What is asked twice does no harm: a commit has its version. */
  async #say<T>(reading: boolean, call: (member: Etcd3) => Promise<T>): Promise<T> {
    for (let asked = 1; ; asked++) {
      const member = this.#member;
      try {
        return await call(this.members[member]!);
      } catch (error) {
        const ours = translated(error, this.cluster, reading ? "reading" : "writing");
        if (!(ours instanceof Away)) throw ours;
        if (this.#member === member) this.#member = (member + 1) % this.members.length;
        if (asked === this.members.length) throw ours;
      }
    }
  }
}
