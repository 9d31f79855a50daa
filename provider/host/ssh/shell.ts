import { constants } from "node:os";
import type { Readable } from "node:stream";
import type { ClientChannel } from "ssh2";
import type { OverlayError } from "../../errors";
import { LOCK_DIR, LOCK_HOLDER_FILE, MAKE_LOCK_DIR, quote } from "../../network/render/shell";
import type { CommandResult, Shell } from "../connection";
import {
  answerTooLargeError,
  connectionLostError,
  hostLockedError,
  MAX_ANSWER_BYTES,
  notRootError,
  type ShellContext,
  shellEndedError,
  shellRefusedError,
  timeoutError,
  toolMissingError,
  unsafeLockError,
} from "./shell-errors";

/**
 * What runs on the host. The command line starts a root shell that reads its commands from stdin; each script is then sent
 * as one command, quoted as a whole, so that no quote, heredoc, `exit` or syntax error in it can break the protocol, and
 * a script that was cut off half way does not run. Its commands read /dev/null and not the next script. After it the
 * marker line `MARK CODE` is printed on both streams. End of input ends the shell, also when our process dies.
 *
 * The command line itself is plain enough for any login shell.
 */
export interface RootShell {
  mark: string;
  sudo: boolean;
  /** Seconds after which the host itself ends the shell, in any case. */
  limit: number;
}

/** Exit code of flock if the lock is not free in time. */
const LOCK_TIMEOUT_CODE = 75;

const READY = 'echo "$m ready"; echo "$m ready" >&2;';

/**
 * Prints that the shell started (earlier output comes from login scripts), then a missing tool, if there is one. Without sudo the user
 * must be root already: nothing on the host may be half changed.
 */
const START = [
  'm=$1; echo "$m start"; PATH=$PATH:/usr/sbin:/sbin; LC_ALL=C; export PATH LC_ALL;',
  `command -v timeout >/dev/null || { echo "timeout$m missing"; exit 1; };`,
  '[ "$(id -u)" = 0 ] || { echo "$m notroot"; exit 1; };',
  `${READY} exec timeout -k 5 "$2" sh`,
].join(" ");

export function rootCommand({ mark, sudo, limit }: RootShell): string {
  const asRoot = sudo ? 'sudo -n env SSH_CONNECTION="$SSH_CONNECTION" ' : ""; // sudo clears what sshd has set
  return asRoot + ["sh", "-c", START, "overlay", mark, wholeSeconds(limit)].map(quoteIfNeeded).join(" ");
}

// The trap on TERM is for timeout: dash runs no EXIT trap on a signal.
const HOLD = [
  `m=$1; trap "rm -f ${LOCK_HOLDER_FILE}" EXIT; trap "exit 143" TERM;`,
  `{ printf "%s\\n" "$2"; date -u +%Y-%m-%dT%H:%M:%SZ; } >${LOCK_HOLDER_FILE}; ${READY} sh; exit`,
].join(" ");

/** The host's lock. */
export interface Lock {
  holder: string;
  /** Seconds to wait until it is free. */
  wait: number;
}

/**
 * The command with which a root shell takes the lock. It starts another shell, which holds the lock and reads the scripts until `exit`. If
 * that one ends otherwise, both end: no script may run without the lock. Without -o a background child would keep the lock, and without timeout a
 * client that was stopped would, for ever.
 */
export function lockCommand(mark: string, { holder, wait }: Lock, limit: number): string {
  const hold = ["sh", "-c", HOLD, "overlay", mark, toPrintable(holder)].map(quoteIfNeeded).join(" ");
  const within = `-w ${wholeSeconds(wait)} ${LOCK_DIR} timeout -k 5 ${wholeSeconds(limit)}`;
  return [
    `command -v flock >/dev/null || { echo "flock${mark} missing"; exit 1; };`,
    `${MAKE_LOCK_DIR} || { echo "${mark} unsafe"; exit 1; };`,
    `flock -o -E ${LOCK_TIMEOUT_CODE} ${within} ${hold}; c=$?;`,
    `[ $c != ${LOCK_TIMEOUT_CODE} ] || { cat ${LOCK_HOLDER_FILE}; echo "${mark} locked"; };`,
    `[ $c = 0 ] || exit $c; ${printCode(mark)}\n`,
  ].join(" ");
}

const printCode = (mark: string): string => `echo "${mark} $c"; echo "${mark} $c" >&2`;

/** One script, as the root shell gets it. */
export const scriptCommand = (mark: string, script: string): string =>
  `(eval ${quoteIfNeeded(script)}) </dev/null; c=$?; ${printCode(mark)}\n`;

const wholeSeconds = (seconds: number): string => String(Math.max(1, Math.ceil(seconds)));

// csh would expand `!`, and fish `\\`, even within quotes.
const toPrintable = (text: string): string => text.replace(/[^\x20-\x7e]|[\\!]/g, "?").slice(0, 500);

const quoteIfNeeded = (word: string): string => (/^[\w-]+$/.test(word) ? word : quote(word));

/** The output of a stream up to a marker line, and the word on that line; no word: the stream ended instead. */
export interface Frame {
  text: string;
  word: string | undefined;
}

const MAX_WORD = 16;

/** Cuts a stream at its marker lines `MARK WORD`. A marker may follow text that has no newline at its end. */
export class Frames {
  #held: Buffer[] = [];
  #tail: Buffer = Buffer.alloc(0);
  #hasEnded = false;
  readonly #cut: Frame[] = [];
  readonly #waiting: ((frame: Frame) => void)[] = [];

  #size = 0;

  /** `overflow` is called once, if a host sends more than it may; further output is discarded. */
  constructor(
    stream: Readable,
    private readonly mark: string,
    private readonly overflow: () => void = () => {},
  ) {
    stream.on("data", (chunk: Buffer) => this.#push(chunk));
    stream.once("end", () => this.end());
  }

  /** The next frame, in order; waiting callers are served in the order of their calls. */
  next(): Promise<Frame> {
    const frame = this.#cut.shift();
    if (this.#cut.length === 0) this.#size = this.#held.reduce((sum, { length }) => sum + length, 0);
    if (frame) return Promise.resolve(frame);
    if (this.#hasEnded) return Promise.resolve(this.#rest());
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  end(): void {
    this.#hasEnded = true;
    for (const resolve of this.#waiting.splice(0)) resolve(this.#rest());
  }

  #rest(): Frame {
    return { text: Buffer.concat(this.#held).toString("utf8"), word: undefined };
  }

  #push(chunk: Buffer): void {
    if (this.#hasEnded) return;
    this.#size += chunk.length;
    if (this.#size > MAX_ANSWER_BYTES) {
      this.#held = [];
      this.end();
      this.overflow();
      return;
    }
    this.#held.push(chunk);
    // Only the new chunk and a marker's length before it are searched: megabytes of output must not cost their square.
    const seen = Buffer.concat([this.#tail, chunk]);
    this.#tail = seen.subarray(-(this.mark.length + MAX_WORD));
    if (seen.includes(this.mark)) this.#split();
  }

  #split(): void {
    const all = Buffer.concat(this.#held);
    const start = all.indexOf(this.mark);
    const end = start < 0 ? -1 : all.indexOf("\n", start);
    this.#held = [all];
    if (end < 0) return;
    this.#held = [all.subarray(end + 1)];
    this.#tail = this.#held[0]!.subarray(-(this.mark.length + MAX_WORD));
    const word = all.toString("utf8", start + this.mark.length, end).trim();
    this.#deliver({ text: all.toString("utf8", 0, start), word });
    this.#split();
  }

  #deliver(frame: Frame): void {
    const resolve = this.#waiting.shift();
    if (resolve) resolve(frame);
    else this.#cut.push(frame);
  }
}

/** Milliseconds for a shell to end after its input has ended, before its channel is closed. */
const GRACE_MS = 2000;

/** An SSH session with a root shell, which runs scripts, with the host's lock or without, until `end`. */
export class ShellSession implements Shell {
  readonly #out: Frames;
  readonly #err: Frames;
  readonly #closed: Promise<void>;
  readonly #gone: Promise<void>;
  readonly #stopped: Promise<never>;
  readonly #started: Promise<void>;
  readonly #openedAt = performance.now();
  #stop!: (why: OverlayError) => void;
  #why: OverlayError | undefined;
  #timer: NodeJS.Timeout | undefined;
  #exit: number | undefined;
  #isUsable = true;
  #doing = "starting a shell";

  constructor(
    private readonly channel: ClientChannel,
    private readonly context: ShellContext,
    private readonly mark: string,
  ) {
    const overflow = () => this.#stop(answerTooLargeError(context, this.#doing));
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
    void this.#gone.then(() => {
      this.#isUsable = false;
    });
    this.#stopped = new Promise((_, reject) => {
      this.#stop = reject;
    });
    this.#stopped.catch((why: OverlayError) => this.#cut(why));
    this.#started = this.#start();
    this.#started.catch(() => {}); // it is awaited by each use
  }

  /** Whether the shell still runs, and the host will let it run for one more use. */
  canServe({ sudo, operationTimeout }: ShellContext): boolean {
    const isYoung = performance.now() - this.#openedAt < operationTimeout * 1000;
    return this.#isUsable && isYoung && sudo === this.context.sudo;
  }

  async #start(): Promise<void> {
    const [start, ready, noise] = await Promise.all([this.#out.next(), this.#out.next(), this.#err.next()]);
    if (start.word === undefined) throw await this.#explainEnd(noise, shellRefusedError);
    if (ready.word === "missing") throw toolMissingError(this.context, ready.text);
    if (ready.word === "notroot") throw notRootError(this.context);
    if (ready.word === undefined) throw await this.#explainEnd(noise, shellEndedError);
  }

  /** The next output on both streams. An error of the shell's start is more specific than one of its end. */
  async #answer(): Promise<[out: Frame, err: Frame]> {
    const frames = Promise.all([this.#out.next(), this.#err.next()]);
    await this.#started;
    return frames;
  }

  /** A script is sent before the shell has reported its start: that saves a round trip. */
  async run(script: string, step = runningText(script)): Promise<CommandResult> {
    this.#doing = step;
    this.channel.write(scriptCommand(this.mark, script));
    const [out, err] = await this.#answer();
    if (out.word === undefined || err.word === undefined) throw await this.#explainEnd(err, shellEndedError);
    return { code: Number(out.word), stdout: out.text, stderr: err.text };
  }

  /** Runs one script without the lock. */
  async runOnce(script: string, step: string): Promise<CommandResult> {
    this.#allow(this.context.operationTimeout);
    const result = await this.run(script, step);
    clearTimeout(this.#timer);
    return result;
  }

  /**
   * Holds the host's lock while `work` runs, but not longer than the shell lives: work that hangs must not block other processes that
   * wait for the lock. `slack`: seconds for the answer, beside those for the lock.
   */
  async withLock<T>(lock: Lock, slack: number, work: (shell: Shell) => Promise<T>): Promise<T> {
    const { context } = this;
    this.#doing = "locking it";
    this.#allow(lock.wait + slack);
    this.channel.write(lockCommand(this.mark, lock, context.operationTimeout));
    const [{ word, text }, err] = await this.#answer();
    if (word === "missing") throw toolMissingError(context, text);
    if (word === "unsafe") throw unsafeLockError(context);
    if (word === "locked") throw hostLockedError(context, text, lock.wait);
    if (word === undefined) throw await this.#explainEnd(err, shellEndedError);
    this.#allow(context.operationTimeout);
    const result = await Promise.race([work(this), this.#stopped]);
    await this.#unlock();
    return result;
  }

  /** Waits until the lock is free. What was done is done: a shell that does not answer is only not used again. */
  async #unlock(): Promise<void> {
    this.#isUsable = false;
    this.channel.write("exit\n");
    const free = this.#answer().then(([{ word }]) => {
      this.#isUsable = word !== undefined;
    });
    await waitBriefly(free);
    clearTimeout(this.#timer);
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
    const late = () => this.#stop(timeoutError(this.context, this.#doing, seconds));
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
  async #explainEnd(err: Frame, otherwise: typeof shellEndedError): Promise<OverlayError> {
    if (!this.#why) await waitBriefly(this.#gone);
    if (this.#why) return this.#why;
    const lost = this.context.lost();
    return lost
      ? connectionLostError(this.context, this.#doing, lost)
      : otherwise(this.context, this.#exit, err.text, this.#doing);
  }
}

/** Waits for `event`, at most `GRACE_MS`. */
async function waitBriefly(event: Promise<void>): Promise<void> {
  let limit: NodeJS.Timeout | undefined;
  const grace = new Promise<void>((resolve) => {
    limit = setTimeout(resolve, GRACE_MS);
  });
  await Promise.race([event, grace]);
  clearTimeout(limit);
}

/** The step of a script that has no other name. */
export const runningText = (script: string): string =>
  `running \`${(script.trim().split("\n")[0] ?? "").slice(0, 60)}\``;
