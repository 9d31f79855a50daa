import type { OverlayError } from "../../errors";
import type { Row, Tx, Write } from "../store";
import type { Span } from "./view";

/** What an engine must be for `optimistic.ts`: rows, and a version of all of them that a commit compares and replaces. */

export interface Version {
  number: number;
  /** Random: content and id belong together, also after a backup was restored. */
  id: string;
  /** When it was made. Time does not go back behind it, whoever's clock it was. */
  at: number;
}

/** `writes` is missing where they were too many to keep. */
export type Commit = Version & { writes?: Write[] };

export interface News {
  head: Version;
  /** All commits after the version that was asked about, oldest first; undefined when it is too long ago. */
  since?: Commit[];
}

/** A process that missed more commits than this is quicker to fetch what it needs. */
export const CAUGHT_UP = 64;

/** The engine's time; undefined when it was not heard for too long. */
export type Clock = () => number | undefined;

/** What commits go through. Every call throws `LostRace` where it finds another version, `Away` where it finds nobody. */
export interface Journal {
  news(since?: Version): Promise<News>;
  /** The id of the commit with this number; undefined where the log does not have it. */
  findId(number: number): Promise<string | undefined>;
  rows(at: Version, spans: Span[]): Promise<Row[][]>;
  /**
   * News when `from` is not the newest version any more, when it is somebody else's turn, or when there is something where
   * nothing was `hoped` to be; nothing when it went well.
   */
  commit(from: Version, commit: Required<Commit>, hoped: Span[]): Promise<News | undefined>;
}

export interface Engine extends Journal {
  readonly readOnly: boolean;
  /** For messages. */
  readonly place: string;
  readonly clock: Clock;
  /** This machine's time, by which a leap of the engine's clock is noticed. */
  readonly machineTime: () => number;
  /**
   * Waits in line, at most so many milliseconds. Until `end` nobody else commits who keeps to the line. Brings the news since
   * a version.
   */
  turn(patience: number, since?: Version): Promise<Turn>;
  read<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

export interface Turn extends Journal {
  latest: News;
  /** Never fails. A commit ends the turn by itself. */
  end(): Promise<void>;
}

export class LostRace extends Error {}

/** The server does not answer now, but may come back. */
export class Away extends Error {
  constructor(override readonly cause: OverlayError) {
    super(cause.message);
  }
}
