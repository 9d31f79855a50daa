import type { ICompare, IRangeResponse, IRequestOp, ITxnResponse, KVClient } from "etcd3";
import type { Row, Write } from "../store";
import { isOutOfRange } from "./etcd-errors";
import { type Commit, type Journal, LostRace, type News, type Version } from "./optimistic";

/** Where things lie under the prefix. All keys here are strings of bytes. */
export const keysUnder = (prefix: string) => ({
  head: `${prefix}head`,
  row: (key: string) => `${prefix}row/${key}`,
  log: (number: number) => `${prefix}log/${padded(number)}`,
  logEnd: `${prefix}log0`,
  part: (number: number, rest = "") => `${prefix}part/${padded(number)}/${rest}`,
  ticket: (id = "") => `${prefix}queue/${id}`,
  ticketEnd: `${prefix}queue0`,
});
export type Keys = ReturnType<typeof keysUnder>;
const padded = (number: number): string => String(number).padStart(16, "0");

export const bytes = (text: string): Buffer => Buffer.from(text, "latin1");
