import { setMaxListeners } from "node:events";
import { isOverlayError, OverlayError } from "../../errors";
import {
  type CommandResult,
  type Connection,
  connectionKey,
  connectionName,
  type Host,
  type HostSettings,
  type Hosts,
  hostId,
  isSameConnection,
  type Shell,
  userOf,
} from "../connection";
import { Semaphore } from "../semaphore";
import { ChannelNotOpened, type SshClient } from "./client";
import { type Credentials, DialFailed, DialRetries, dial, readCredentials } from "./dial";
import { HostKeys } from "./host-keys";
import { runningText, type ShellSession } from "./shell";
import { noSessionError, sessionRefusedError } from "./shell-errors";

/** Hosts over SSH: shared connections, commands, and root shells under the host's lock. */

export interface SshHosts extends Hosts {
  /** `fallbacks` are tried in order when the host refuses the credentials, and for no other reason: keys get rotated. */
  connect(connection: Connection, fallbacks?: Connection[]): Promise<Host>;
  stats(): Record<string, HostStats>;
}

export interface SshOptions {
  /** Seconds between two keepalives; a host that misses three in a row is given up. */
  keepalive?: number;
  /** Gets a line for the user when a host has not been reached for a while. */
  notify?(text: string): void;
}

export function openHosts(settings: HostSettings, options: SshOptions = {}): SshHosts {
  const stats: Record<string, HostStats> = {};
  const locks = new Map<string, Semaphore>();
  const statsOf = (connection: Connection) =>
    (stats[connectionName(connection)] ??= { connections: 0, execs: 0, conversations: 0 });
  const clients = new SshClients(
    settings,
    options.keepalive ?? 5,
    (connection) => statsOf(connection).connections++,
    options.notify ?? (() => {}),
  );

  return {
    async connect(connection, fallbacks = []) {
      const choices: ConnectionChoices = [connection, ...fallbacks];
      const { connection: choice } = await clients.get(choices);
      const lock = locks.get(connectionKey(choice)) ?? new Semaphore(1);
      locks.set(connectionKey(choice), lock);
      // The connection that worked is tried first from now on, to avoid a refused login with every command.
      return new SshHost(
        settings,
        clients,
        [choice, ...choices.filter((other) => other !== choice)],
        lock,
        statsOf(choice),
      );
    },
    end: () => clients.end(),
    stats: () => structuredClone(stats),
  };
}

/** Numbers of connections and commands, for benchmarks. */
export interface HostStats {
  connections: number;
  execs: number;
  conversations: number;
}

class SshHost implements Host {
  readonly name: string;
  readonly id: string;

  constructor(
    private readonly settings: HostSettings,
    private readonly clients: SshClients,
    private readonly choices: ConnectionChoices,
    /** Requests of this process wait for the host's lock here, and not on a channel: sshd allows only ten. */
    private readonly lock: Semaphore,
    private readonly stats: HostStats,
  ) {
    this.name = connectionName(choices[0]);
    this.id = hostId(choices[0]);
  }

  async exec(script: string, step = runningText(script), { anew }: { anew?: number } = {}): Promise<CommandResult> {
    this.stats.execs++;
    const runScript = (session: ShellSession): Promise<CommandResult> => session.runOnce(script, step);
    if (anew === undefined) return this.#withShell(step, runScript);
    const [connection] = this.choices;
    const client = await this.clients.openNew(connection, anew);
    try {
      return await this.#useShell({ connection, client }, anew, runScript);
    } finally {
      await client.end();
    }
  }

  withLock<T>(holder: string, work: (shell: Shell) => Promise<T>): Promise<T> {
    const { connectTimeout, operationTimeout } = this.settings;
    const lock = { holder, wait: Math.max(1, Math.ceil(operationTimeout / 2)) };
    return this.lock.run(() => {
      this.stats.conversations++;
      return this.#withShell("locking it", (session) => session.withLock(lock, connectTimeout, work));
    });
  }

  /** A connection may have broken since its last use. Nothing has run then, so it is dialled again, once. */
  async #withShell<T>(step: string, use: (session: ShellSession) => Promise<T>, mayRedial = true): Promise<T> {
    const choice = await this.clients.get(this.choices);
    try {
      return await this.#useShell(choice, this.settings.operationTimeout, use);
    } catch (error) {
      if (!(error instanceof ChannelNotOpened)) throw error;
      if (choice.client.lost && mayRedial) return this.#withShell(step, use, false);
      throw error.refusal === undefined
        ? noSessionError(this.name, step, error)
        : sessionRefusedError(this.name, step, error);
    }
  }

  #useShell<T>(
    { connection, client }: ChosenConnection,
    operationTimeout: number,
    use: (session: ShellSession) => Promise<T>,
  ): Promise<T> {
    const context = {
      name: this.name,
      user: userOf(connection),
      sudo: usesSudo(connection),
      operationTimeout,
      lost: () => client.lost,
    };
    return client.withShell(context, this.settings.connectTimeout * 1000, use);
  }
}

const usesSudo = (connection: Connection): boolean => userOf(connection) !== "root" && (connection.sudo ?? true);

interface SharedClient {
  connection: Connection;
  client: Promise<SshClient>;
}

/** A connection, and alternatives for refused credentials. */
export type ConnectionChoices = [Connection, ...Connection[]];

export interface ChosenConnection {
  connection: Connection;
  client: SshClient;
}

/** The SSH connections of this process: one for each connection key, opened at the first use, and again when it was lost. */
class SshClients {
  readonly #shared = new Map<string, SharedClient>();
  readonly #open = new Set<SshClient>();
  readonly #ended = new AbortController();
  readonly #dials: Semaphore;
  readonly #hostKeys: HostKeys;

  constructor(
    private readonly settings: HostSettings,
    private readonly keepalive: number,
    private readonly onConnected: (connection: Connection) => void,
    private readonly notify: (text: string) => void,
  ) {
    this.#dials = new Semaphore(settings.parallelHosts);
    this.#hostKeys = new HostKeys(settings);
    setMaxListeners(0, this.#ended.signal);
  }

  /** The first of these that the host accepts. Only refused credentials lead to the next one. */
  async get([first, ...fallbacks]: ConnectionChoices): Promise<ChosenConnection> {
    try {
      return { connection: first, client: await this.#share(first) };
    } catch (error) {
      rethrowUnlessRefused(error);
      for (const connection of distinctConnections(first, fallbacks)) {
        const client = await this.#share(connection).catch(rethrowUnlessRefused);
        if (client) return { connection, client };
      }
      throw error;
    }
  }

  /** A new connection that is not shared, within so many seconds; the caller ends it. */
  openNew(connection: Connection, seconds: number): Promise<SshClient> {
    return this.#dialUntilUp({ ...connection, dialErrorLimit: 0 }, { ...this.settings, operationTimeout: seconds });
  }

  async end(): Promise<void> {
    await Promise.all([...this.#open].map((client) => client.end()));
    this.#ended.abort();
  }

  async #share(connection: Connection): Promise<SshClient> {
    const key = connectionKey(connection);
    const shared = this.#shared.get(key);
    if (!shared) return this.#dialShared(key, connection);
    const client = await shared.client.catch((error) => {
      // Another caller may have failed because of its key or its limits: try again with our own.
      if (isSameConnection(shared.connection, connection)) throw error;
    });
    if (client && !client.lost) return this.#requireHostKey(client, connection);
    if (client) this.#open.delete(client);
    if (this.#shared.get(key) === shared) this.#shared.delete(key);
    return this.#share(connection);
  }

  async #requireHostKey(client: SshClient, connection: Connection): Promise<SshClient> {
    if (!connection.hostKey) return client;
    const refused = (await this.#hostKeys.expect(connection)).refuse(client.hostKey);
    if (refused) throw refused;
    return client;
  }

  #dialShared(key: string, connection: Connection): Promise<SshClient> {
    const shared = { connection, client: this.#dialUntilUp(connection) };
    this.#shared.set(key, shared);
    shared.client.catch(() => {
      if (this.#shared.get(key) === shared) this.#shared.delete(key);
    });
    return shared.client;
  }

  async #dialUntilUp(connection: Connection, settings = this.settings): Promise<SshClient> {
    const credentials = await readCredentials(connection);
    const retries = new DialRetries(connection, settings);
    const cancelNotice = retries.notifyWhenSlow(this.notify);
    try {
      for (;;) {
        try {
          const client = await this.#dial(connection, credentials, retries);
          this.onConnected(connection);
          this.#open.add(client);
          return client;
        } catch (error) {
          if (!(error instanceof DialFailed)) throw error;
          await retries.pause(error, this.#ended.signal);
        }
      }
    } finally {
      cancelNotice();
    }
  }

  /** A slot is held for one dial, and free during the pause: a host that is down must not block the others. */
  async #dial(connection: Connection, credentials: Credentials, retries: DialRetries): Promise<SshClient> {
    const jump = connection.proxy && (await this.#share(connection.proxy).catch(explainJumpFailure(connection)));
    const expected = await this.#hostKeys.expect(connection);
    const request = { connection, credentials, expected, jump, keepalive: this.keepalive, ended: this.#ended.signal };
    const dialInSlot = () => this.#dials.run(() => dial({ ...request, limit: retries.limit() }));
    return jump ? jump.handshakes.run(dialInSlot) : dialInSlot();
  }
}

/** Repeated attempts with the same key could make the host block us. */
const distinctConnections = (first: Connection, fallbacks: Connection[]): Connection[] =>
  fallbacks.filter(
    (choice, index) => ![first, ...fallbacks.slice(0, index)].some((other) => isSameConnection(other, choice)),
  );

function rethrowUnlessRefused(error: unknown): undefined {
  if (!isOverlayError(error, "SSH_AUTH")) throw error;
}

const explainJumpFailure = (connection: Connection) => (error: unknown) => {
  if (!isOverlayError(error)) throw error;
  const what = `${connectionName(connection)} is behind a jump host that fails: ${error.what}`;
  throw new OverlayError(error.code, what, error.fix, error);
};
