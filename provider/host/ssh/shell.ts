import { constants } from "node:os";
import type { ClientChannel } from "ssh2";
import type { OverlayError } from "../../errors";
import type { CommandResult, Shell } from "../connection";
import {
  answerTooLarge,
  connectionLost,
  hostLocked,
  notRoot,
  type ShellContext,
  shellEnded,
  shellRefused,
  timedOut,
  toolMissing,
  unsafeLock,
} from "./shell-errors";
import { type Frame, Frames, scriptCommand } from "./shell-protocol";

/** Milliseconds for a shell to end after its input has ended, before its channel is closed. */
const GRACE_MS = 2000;

/** A session with one root shell: sends scripts and receives results, until `end`. shell-protocol.ts has the commands on the host. */
export class ShellSession implements Shell {
  readonly #out: Frames;
  readonly #err: Frames;
  readonly #closed: Promise<void>;
  readonly #gone: Promise<void>;
  readonly #stopped: Promise<never>;
  #stop!: (why: OverlayError) => void;
  #why: OverlayError | undefined;
  #timer: NodeJS.Timeout | undefined;
  #exit: number | undefined;
  #doing = "starting a shell";

  constructor(
    private readonly channel: ClientChannel,
    private readonly context: ShellContext,
    private readonly mark: string,
  ) {
    const overflow = () => this.#stop(answerTooLarge(context, this.#doing));
    this.#out = new Frames(channel, mark, overflow);
    this.#err = new Frames(channel.stderr, mark, overflow);
    channel.on("error", () => {});
    this.#closed = new Promise((resolve) => channel.once("close", () => resolve()));
    const exited = new Promise<void>((resolve) => {
      channel.once("exit", (code: number | null, signal?: NodeJS.Signals) => {
        this.#exit = code ?? 128 + (signal ? constants.signals[signal] : 0);
        resolve();
      });
    });
    // A connection that breaks brings no exit code, and a background child keeps the channel open long after one.
    this.#gone = Promise.race([exited, this.#closed]);
    this.#stopped = new Promise((_, reject) => {
      this.#stop = reject;
    });
    this.#stopped.catch((why: OverlayError) => this.#cut(why));
  }

  /** Waits until the shell accepts scripts, and holds the lock if requested: `limit` seconds at most, `wait` for the lock. */
  async start(limit: number, wait = 0): Promise<void> {
    this.#allow(limit);
    const [start, ready, noise] = await Promise.all([this.#out.next(), this.#out.next(), this.#err.next()]);
    if (start.word === undefined) throw await this.#ended(noise, shellRefused);
    if (ready.word === "missing") throw toolMissing(this.context, ready.text);
    if (ready.word === "notroot") throw notRoot(this.context);
    if (ready.word === "unsafe") throw unsafeLock(this.context);
    if (ready.word === "locked") throw hostLocked(this.context, ready.text, wait);
    if (ready.word === undefined) throw await this.#ended(noise, shellEnded);
    this.#allow(this.context.operationTimeout);
  }

  async run(script: string): Promise<CommandResult> {
    this.#doing = `running \`${firstLine(script)}\``;
    this.channel.write(scriptCommand(this.mark, script));
    const [out, err] = await Promise.all([this.#out.next(), this.#err.next()]);
    if (out.word === undefined || err.word === undefined) throw await this.#ended(err, shellEnded);
    return { code: Number(out.word), stdout: out.text, stderr: err.text };
  }

  /**
   * Runs one script and no other. It is sent, and the input ends, before the shell has reported its start: that saves two
   * round trips.
   */
  async runOnce(script: string): Promise<CommandResult> {
    const begun = this.start(this.context.operationTimeout);
    const answer = this.run(script);
    this.channel.end();
    // An error of the shell shows in both; that of its start is more specific.
    answer.catch(() => {});
    await begun;
    return answer;
  }

  /** Runs `work`, but not longer than the shell: work that hangs must not block other processes that wait for the lock. */
  whileAlive<T>(work: Promise<T>): Promise<T> {
    return Promise.race([work, this.#stopped]);
  }

  /**
   * Ends the shell's input, and waits until it has ended and its lock is free; then until the host has closed the channel,
   * because until then it counts as a session.
   */
  async end(): Promise<void> {
    clearTimeout(this.#timer);
    this.channel.end();
    if (!this.#why) await waitBriefly(this.#gone);
    this.channel.close();
    await waitBriefly(this.#closed);
  }

  #allow(seconds: number): void {
    clearTimeout(this.#timer);
    const late = () => this.#stop(timedOut(this.context, this.#doing, seconds));
    this.#timer = setTimeout(late, seconds * 1000);
  }

  #cut(why: OverlayError): void {
    this.#why = why;
    this.#out.end();
    this.#err.end();
    this.channel.signal("TERM");
    this.channel.close();
  }

  /** Why the streams ended before the output was complete: a timeout, a lost connection, or the end of the shell. */
  async #ended(err: Frame, otherwise: typeof shellEnded): Promise<OverlayError> {
    if (!this.#why) await waitBriefly(this.#gone);
    if (this.#why) return this.#why;
    const lost = this.context.lost();
    return lost
      ? connectionLost(this.context, this.#doing, lost)
      : otherwise(this.context, this.#exit, err.text, this.#doing);
  }
}

/** `event`, or the end of our grace. */
async function waitBriefly(event: Promise<void>): Promise<void> {
  let limit: NodeJS.Timeout | undefined;
  const grace = new Promise<void>((resolve) => {
    limit = setTimeout(resolve, GRACE_MS);
  });
  await Promise.race([event, grace]);
  clearTimeout(limit);
}

const firstLine = (script: string): string => (script.trim().split("\n")[0] ?? "").slice(0, 60);
