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
  /** The user may not be root, and has no sudo: that is checked first, or tools would fail one by one. */
  mayLackRights?: boolean;
  /** Seconds after which the host itself ends the shell, in any case. */
  limit: number;
  lock?: { holder: string; wait: number };
}

/** Exit code of flock if the lock is not free in time. */
const LOCK_TIMEOUT_CODE = 75;

/** Prints that the shell started (earlier output comes from login scripts), then a missing tool, if there is one. */
const startScript = (tools: string): string =>
  [
    'm=$1; echo "$m start"; PATH=$PATH:/usr/sbin:/sbin; LC_ALL=C; export PATH LC_ALL;',
    `for t in ${tools}; do command -v $t >/dev/null || { echo "$t$m missing"; exit 1; }; done;`,
  ].join(" ");

/** Without sudo the user must be root already: nothing on the host may be half changed. */
const BE_ROOT = '[ "$(id -u)" = 0 ] || { echo "$m notroot"; exit 1; };';

const READY = 'echo "$m ready"; echo "$m ready" >&2;';

const unlocked = (mayLackRights: boolean): string =>
  `${startScript("timeout")} ${mayLackRights ? `${BE_ROOT} ` : ""}${READY} exec timeout -k 5 "$2" sh`;

// Without -o a background child would keep the lock, and without timeout a client that was stopped would, for ever.
const LOCKED = [
  startScript("timeout flock"),
  BE_ROOT,
  `${MAKE_LOCK_DIR} || { echo "$m unsafe"; exit 1; };`,
  `flock -o -E ${LOCK_TIMEOUT_CODE} -w "$3" ${LOCK_DIR} timeout -k 5 "$2" sh -c "$5" overlay "$m" "$4"; c=$?;`,
  `[ $c = ${LOCK_TIMEOUT_CODE} ] && { cat ${LOCK_HOLDER_FILE}; echo "$m locked"; }; exit $c`,
].join(" ");

// The trap on TERM is for timeout: dash runs no EXIT trap on a signal.
const HOLD = [
  `m=$1; trap "rm -f ${LOCK_HOLDER_FILE}" EXIT; trap "exit 143" TERM;`,
  `{ printf "%s\\n" "$2"; date -u +%Y-%m-%dT%H:%M:%SZ; } >${LOCK_HOLDER_FILE}; ${READY} sh; exit`,
].join(" ");

export function rootCommand({ mark, sudo, mayLackRights = false, limit, lock }: RootShell): string {
  const shell = lock
    ? [LOCKED, "overlay", mark, wholeSeconds(limit), wholeSeconds(lock.wait), toPrintable(lock.holder), HOLD]
    : [unlocked(mayLackRights), "overlay", mark, wholeSeconds(limit)];
  const asRoot = sudo ? 'sudo -n env SSH_CONNECTION="$SSH_CONNECTION" ' : ""; // sudo clears what sshd has set
  return asRoot + ["sh", "-c", ...shell].map(quoteIfNeeded).join(" ");
}

/** One script, as the root shell gets it. */
export const scriptCommand = (mark: string, script: string): string =>
  `(eval ${quoteIfNeeded(script)}) </dev/null; c=$?; echo "${mark} $c"; echo "${mark} $c" >&2\n`;

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

/** A session with one root shell: sends scripts and receives results, until `end`. */
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
    this.#stopped = new Promise((_, reject) => {
      this.#stop = reject;
    });
    this.#stopped.catch((why: OverlayError) => this.#cut(why));
  }

  /** Waits until the shell accepts scripts, and holds the lock if requested: `limit` seconds at most, `wait` for the lock. */
  async start(limit: number, wait = 0): Promise<void> {
    this.#allow(limit);
    const [start, ready, noise] = await Promise.all([this.#out.next(), this.#out.next(), this.#err.next()]);
    if (start.word === undefined) throw await this.#explainEnd(noise, shellRefusedError);
    if (ready.word === "missing") throw toolMissingError(this.context, ready.text);
    if (ready.word === "notroot") throw notRootError(this.context);
    if (ready.word === "unsafe") throw unsafeLockError(this.context);
    if (ready.word === "locked") throw hostLockedError(this.context, ready.text, wait);
    if (ready.word === undefined) throw await this.#explainEnd(noise, shellEndedError);
    this.#allow(this.context.operationTimeout);
  }

  async run(script: string, step = runningText(script)): Promise<CommandResult> {
    this.#doing = step;
    this.channel.write(scriptCommand(this.mark, script));
    const [out, err] = await Promise.all([this.#out.next(), this.#err.next()]);
    if (out.word === undefined || err.word === undefined) throw await this.#explainEnd(err, shellEndedError);
    return { code: Number(out.word), stdout: out.text, stderr: err.text };
  }

  /**
   * Runs one script and no other. It is sent, and the input ends, before the shell has reported its start: that saves two
   * round trips.
   */
  async runOnce(script: string, step: string): Promise<CommandResult> {
    const begun = this.start(this.context.operationTimeout);
    const answer = this.run(script, step);
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
