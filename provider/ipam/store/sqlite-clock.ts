import { z } from "zod";
import { type BootTime, fileClockBehind, fileClockLeapt, judgeClock } from "./clock-check";

interface Database {
  exec(sql: string): void;
  prepare(sql: string): { get(...values: unknown[]): unknown; run(...values: unknown[]): unknown };
}

const noted = z.object({ at: z.number(), boot: z.string().nullable(), uptime: z.number().nullable() });
/** The moment of the last commit is only noted so often: leaps are minutes. */
const NOTED_EVERY_MS = 10_000;

/** Compares this machine's clock with what the last commit has noted of it. Everything runs within the transaction at hand. */
export class SqliteClock {
  readonly #read: (() => unknown) | undefined;
  #noted: z.infer<typeof noted> | undefined;

  constructor(
    private readonly db: Database,
    private readonly path: string,
    readonly now: () => number,
    private readonly bootTime: () => BootTime | undefined,
    readOnly: boolean,
  ) {
    if (!readOnly)
      db.exec("CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY, at REAL NOT NULL, boot TEXT, uptime REAL)");
    const exists = db.prepare("SELECT 1 FROM sqlite_master WHERE name = 'clock'").get() !== undefined;
    const statement = exists ? db.prepare("SELECT at, boot, uptime FROM clock WHERE one = 1") : undefined;
    this.#read = statement && (() => statement.get());
  }

  /** Throws STORE_CLOCK before anything is decided by a clock that is wrong. Returns the time. */
  check(): number {
    const now = this.now();
    const row = this.#read?.();
    this.#noted = row === undefined ? undefined : noted.parse(row);
    if (!this.#noted) return now;
    const { at, boot, uptime } = this.#noted;
    const here = this.bootTime();
    const isSameBoot = here !== undefined && here.boot === boot && uptime !== null && here.uptime >= uptime;
    const expected = isSameBoot ? at + here.uptime - uptime : undefined;
    const verdict = judgeClock(now, expected === undefined ? [] : [expected], at);
    if (verdict === "leap") throw fileClockLeapt(this.path, now, expected!);
    if (verdict === "behind") throw fileClockBehind(this.path, now, at);
    return now;
  }

  /** Notes the time of a transaction that was checked, unless another one was noted a moment ago. */
  note(now: number): void {
    if (!this.#noted || Math.abs(now - this.#noted.at) >= NOTED_EVERY_MS) this.accept();
  }

  /** Notes the time of the clock, also one that `check` refuses. */
  accept(): void {
    const here = this.bootTime();
    this.db
      .prepare("INSERT OR REPLACE INTO clock VALUES (1, ?, ?, ?)")
      .run(this.now(), here?.boot ?? null, here?.uptime ?? null);
  }
}
