import { randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import type { ClientCallback, ClientChannel, Client as Ssh } from "ssh2";
import { Semaphore } from "../semaphore";
import { rootCommand, ShellSession } from "./shell";
import type { ShellContext } from "./shell-errors";

/** sshd allows ten sessions on one connection, and counts a closed one for a short time: five open, five closing. */
const MAX_SESSIONS = 5;

/** How many times the operation timeout a shell may last: it is used anew during the first, and a use may wait for the lock first. */
const SHELL_LIMIT = 3;

/** The first pause after a refused session, in milliseconds. */
const FIRST_RETRY_MS = 20;

/** At most this many handshakes at a time go through a jump host, or MaxStartups behind it drops some. */
const MAX_HANDSHAKES = 8;

/** After this many unanswered keepalives in a row the peer is considered dead. */
const MAX_UNANSWERED = 3;

/** The channel was not opened: nothing has run on the host, and a retry is safe. */
export class ChannelNotOpened extends Error {
  constructor(
    message: string,
    /** The host's reason code (RFC 4254, 5.1), if the host refused. */
    readonly refusal?: number,
  ) {
    super(message);
  }
}

/** The host's configuration forbids it (RFC 4254, 5.1). */
export const PROHIBITED = 1;

/** One authenticated SSH connection, shared by all sessions with that host. */
export class SshClient {
  /** Why it cannot be used any more. */
  lost: string | undefined;
  readonly handshakes = new Semaphore(MAX_HANDSHAKES);
  readonly #sessions = new Semaphore(MAX_SESSIONS);
  readonly #idle: ShellSession[] = [];

  constructor(
    private readonly ssh: Ssh,
    readonly hostKey: Buffer,
    keepalive: number,
  ) {
    ssh.on("error", (error) => this.#markLost(error.message));
    ssh.once("end", () => this.#markLost("the host closed the connection"));
    ssh.once("close", () => this.#markLost("the connection broke"));
    this.#watch(keepalive);
  }

  /**
   * A root shell, for the time of `use`: one that an earlier use has left, or a new one, which `limit` milliseconds are for. To start one costs a host
   * as much as many scripts. It stays for later uses, unless this one failed.
   */
  async withShell<T>(context: ShellContext, limit: number, use: (shell: ShellSession) => Promise<T>): Promise<T> {
    for (;;) {
      const result = await this.#sessions.run(async () => {
        const shell = (await this.#takeIdle(context)) ?? (await this.#openShell(context, limit));
        return shell && { value: await this.#use(shell, use) };
      });
      if (result) return result.value;
    }
  }

  async #use<T>(shell: ShellSession, use: (shell: ShellSession) => Promise<T>): Promise<T> {
    try {
      const value = await use(shell);
      this.#idle.push(shell);
      return value;
    } catch (error) {
      await shell.end();
      throw error;
    }
  }

  /** Shells that can no longer serve are ended: the host may allow only one session. */
  async #takeIdle(context: ShellContext): Promise<ShellSession | undefined> {
    for (let shell = this.#idle.pop(); shell; shell = this.#idle.pop()) {
      if (shell.canServe(context)) return shell;
      await shell.end();
    }
    return undefined;
  }

  async #openShell(context: ShellContext, limit: number): Promise<ShellSession | undefined> {
    const mark = `overlay-${randomBytes(16).toString("hex")}`;
    const { sudo, operationTimeout } = context;
    const command = rootCommand({ mark, sudo, limit: SHELL_LIMIT * operationTimeout });
    const channel = await this.#openSession(command, limit);
    return channel && new ShellSession(channel, context, mark);
  }

  /** A stream to a port that this host can reach. */
  forward(host: string, port: number, limit: number): Promise<Duplex> {
    return this.#open((done) => this.ssh.forwardOut("127.0.0.1", 0, host, port, done), limit);
  }

  async end(): Promise<void> {
    if (this.lost) return;
    const closed = new Promise<void>((resolve) => this.ssh.once("close", () => resolve()));
    const limit = setTimeout(() => this.ssh.destroy(), 1000);
    this.ssh.end();
    await closed;
    clearTimeout(limit);
  }

  /**
   * A host that refuses may have a low MaxSessions, or be short of memory. While other sessions of this connection are open,
   * fewer are opened from now on, and this one waits for them: `undefined`. A session that has just been closed may still be
   * counted by the host: then it is asked again. What its configuration forbids is not asked again, unless other sessions are open.
   */
  async #openSession(command: string, limit: number): Promise<ClientChannel | undefined> {
    const until = Date.now() + limit;
    for (let pause = FIRST_RETRY_MS; ; pause *= 2) {
      try {
        const channel = await this.#open((done) => this.ssh.exec(command, done), until - Date.now());
        this.#sessions.recover();
        return channel;
      } catch (error) {
        if (!(error instanceof ChannelNotOpened) || error.refusal === undefined) throw error;
        if (this.#sessions.shrink()) return undefined;
        if (error.refusal === PROHIBITED) throw error;
        if (Date.now() + pause > until) throw error;
        await sleep(pause);
      }
    }
  }

  #open(ask: (done: ClientCallback) => void, limit: number): Promise<ClientChannel> {
    return new Promise((resolve, reject) => {
      let late = false;
      const timer = setTimeout(() => {
        late = true;
        reject(new ChannelNotOpened(`no answer in ${Math.ceil(limit / 100) / 10} s`));
      }, limit);
      const fail = (error: Error & { reason?: number }) => {
        clearTimeout(timer);
        reject(new ChannelNotOpened(error.message, error.reason));
      };
      const done: ClientCallback = (error, channel) => {
        if (error) return fail(error);
        if (late) return channel.destroy();
        clearTimeout(timer);
        resolve(channel);
      };
      this.#callSsh(() => ask(done), fail);
    });
  }

  /** ssh2 throws if its socket is closed, possibly before it emits the event. */
  #callSsh(question: () => void, failed: (error: Error) => void): void {
    try {
      question();
    } catch (error) {
      this.#markLost("the connection broke");
      failed(error as Error);
    }
  }

  #markLost(reason: string): void {
    this.lost ??= reason;
  }

  /**
   * Detects a dead peer, also behind a jump host, where TCP's own keepalive has no effect. ssh2's keepalive timer
   * would keep the process alive; every server replies to the cancellation of a forwarding that does not exist.
   */
  #watch(seconds: number): void {
    let unanswered = 0;
    const answered = () => {
      unanswered = 0;
    };
    const sendKeepalive = () => {
      if (++unanswered <= MAX_UNANSWERED) return this.#callSsh(() => this.ssh.unforwardIn("", 0, answered), answered);
      this.#markLost("the host stopped answering");
      this.ssh.destroy();
    };
    const timer = setInterval(sendKeepalive, seconds * 1000).unref();
    this.ssh.once("close", () => clearInterval(timer));
  }
}
