import type { IRequestOp } from "etcd3";
import type { Row, Write } from "../store";
import { isNotThere, isStill, look, put, remove, type Wire } from "./etcd-wire";
import { type Commit, type Journal, LostRace, type News, type Version } from "./optimistic";

/** Where things lie under the prefix. */
export const keysUnder = (prefix: string) => ({
  head: `${prefix}head`,
  log: (number: number) => `${prefix}log/${padded(number)}`,
  logEnd: `${prefix}log0`,
  part: (number: number, name = "") => `${prefix}part/${padded(number)}${name}`,
  row: (key: string) => `${prefix}row/${key}`,
  rowKey: (at: string) => at.slice(prefix.length + 4),
  ticket: (id = "") => `${prefix}queue/${id}`,
  ticketEnd: `${prefix}queue0`,
});
export type Keys = ReturnType<typeof keysUnder>;

const padded = (number: number): string => String(number).padStart(16, "0");

/** So many commits can be looked up by those who missed them. */
const KEPT = 100;
/** etcd takes 128 operations and 1.5 MiB at once; some are for the log. */
const [OPERATIONS, LENGTH] = [120, 500_000];

/**
 * The head as it is written. With `parts` it is not finished: its rows are still on their way from these parts to their
 * places, and whoever wants to go on from here takes them there first.
 */
export type Head = Version & { parts?: number };

export const headOf = (rows: Row[]): Head => (rows[0] ? JSON.parse(rows[0][1]) : { number: 0, id: "", at: 0 });

const headText = ({ number, id, at, parts }: Head): string => JSON.stringify({ number, id, at, parts });
const isHead = (keys: Keys, head: Head) => isStill(keys.head, head.number === 0 ? undefined : headText(head));

/** `ticket`: ours, when it is our turn. */
export function journalOn(wire: Wire, keys: Keys, seen: Seen, ticket?: string): Journal {
  const newsLooks = (since?: Version) => [
    look(keys.head),
    ...(since ? [look(keys.log(since.number), keys.logEnd, KEPT)] : []),
  ];
  const newsFrom = async ({ found: [heads, log], revision }: Answer, since?: Version): Promise<News> => {
  };
}
