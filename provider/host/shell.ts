import { constants } from "node:os";
import type { ClientChannel } from "ssh2";
import type { OverlayError } from "../errors";
import { type Frame, Frames } from "./frames";
import { scriptCommand } from "./root-command";
import { hostLocked, type Place, shellEnded, shellRefused, timedOut, toolMissing } from "./shell-errors";
import type { Result, Shell } from "./types";

/** Milliseconds for a shell to end by itself when its input has ended, before its channel is cut. */
const GRACE = 2000;

/** The talk with one root shell: scripts out, results back, until `end`. See root-command.ts for the other side. */
export class Conversation implements Shell {
  readonly #out: Frames;
  readonly #err: Frames;
  readonly #gone: Promise<void>;
  readonly #stopped: Promise<never>;
  #stop!: (why: OverlayError) => void;
  #why: OverlayError | undefined;
  #timer: NodeJS.Timeout | undefined;
  #exit: number | undefined;
  #doing = "starting a shell";

  constructor(
    private readonly channel: ClientChannel,
    private readonly place: Place,
    private readonly mark: string,
  ) {
    this.#out = new Frames(channel, mark);
    this.#err = new Frames(channel.stderr, mark);
    channel.on("error", () => {});
    this.#gone = new Promise((resolve) => {
      channel.once("exit", (code: number | null, signal?: NodeJS.Signals) => {
        this.#exit = code ?? 128 + (signal ? constants.signals[signal] : 0);
        resolve();
      });
      // A connection that broke brings no exit code; and a background child may keep the channel open long after one.
      channel.once("close", () => resolve());
    });
    this.#stopped = new Promise((_, reject) => {
      this.#stop = reject;
    });
    this.#stopped.catch((why: OverlayError) => this.#cut(why));
  }

  /** Until the shell serves scripts, and has the lock if one is wanted: `limit` seconds at most, `wait` for the lock. */
  async begin(limit: number, wait = 0): Promise<void> {
    this.#allow(limit);
    const [start, ready, noise] = await Promise.all([this.#out.next(), this.#out.next(), this.#err.next()]);
    if (start.word === undefined) throw await this.#ended(noise, shellRefused);
    if (ready.word === "missing") throw toolMissing(this.place, ready.text);
    if (ready.word === "locked") throw hostLocked(this.place, ready.text, wait);
    if (ready.word === undefined) throw await this.#ended(noise, shellEnded);
    this.#allow(this.place.operationTimeout);
  }

  async run(script: string): Promise<Result> {
    this.#doing = `running \`${firstLine(script)}\``;
    this.channel.write(scriptCommand(this.mark, script));
    const [out, err] = await Promise.all([this.#out.next(), this.#err.next()]);
    if (out.word === undefined || err.word === undefined) throw await this.#ended(err, shellEnded);
    return { code: Number(out.word), stdout: out.text, stderr: err.text };
  }

  /** `work`, but not for longer than the shell lives: work that hangs must not hold up who waits for its lock. */
  during<T>(work: Promise<T>): Promise<T> {
    return Promise.race([work, this.#stopped]);
  }

  /** Ends the shell's input, and waits until it is gone and its lock is free. */
  async end(): Promise<void> {
    clearTimeout(this.#timer);
    this.channel.end();
    await this.#leave();
    this.channel.close();
  }

  async #leave(): Promise<void> {
    if (this.#why || this.place.lost()) return;
    let limit: NodeJS.Timeout | undefined;
    const grace = new Promise<void>((resolve) => {
      limit = setTimeout(resolve, GRACE);
    });
    await Promise.race([this.#gone, grace]);
    clearTimeout(limit);
  }

  #allow(seconds: number): void {
    clearTimeout(this.#timer);
    const late = () => this.#stop(timedOut(this.place, this.#doing, seconds));
    this.#timer = setTimeout(late, seconds * 1000);
  }

  #cut(why: OverlayError): void {
    this.#why = why;
    this.#out.end();
    this.#err.end();
    this.channel.signal("TERM");
    this.channel.close();
  }

  /** Why the streams ended where an answer was due: we gave up, or the connection broke, or the shell itself ended. */
  async #ended(err: Frame, otherwise: typeof shellEnded): Promise<OverlayError> {
    await this.#leave();
    return this.#why ?? otherwise(this.place, this.#doing, this.#exit, err.text);
  }
}

const firstLine = (script: string): string => (script.trim().split("\n")[0] ?? "").slice(0, 60);
