import { randomBytes } from "node:crypto";
import {
  type CommandResult,
  type Connection,
  connectionKey,
  connectionName,
  type Host,
  type HostSettings,
  type Hosts,
  machineKey,
  type Shell,
  userOf,
} from "../connection";
import { ChannelNotOpened, Semaphore } from "./client";
import { type ChosenConnection, type ConnectionChoices, SshClients } from "./clients";
import { ShellSession } from "./shell";
import { sessionRefused } from "./shell-errors";
import { type RootShell, rootCommand } from "./shell-protocol";

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

export class SshHost implements Host {
  readonly name: string;
  readonly machine: string;

  constructor(
    private readonly settings: HostSettings,
    private readonly clients: SshClients,
    private readonly choices: ConnectionChoices,
    /** Requests of this process wait for the host's lock here, and not on a channel: sshd allows only ten. */
    private readonly lock: Semaphore,
    private readonly stats: HostStats,
  ) {
    this.name = connectionName(choices[0]);
    this.machine = machineKey(choices[0]);
  }

  async exec(script: string, { anew }: { anew?: number } = {}): Promise<CommandResult> {
    this.stats.execs++;
    if (anew === undefined) return this.#converse(undefined, (session) => session.runOnce(script));
    const [connection] = this.choices;
    const client = await this.clients.openNew(connection, anew);
    try {
      return await this.#talk({ connection, client }, anew, undefined, (session) => session.runOnce(script));
    } finally {
      await client.end();
    }
  }

  withLock<T>(holder: string, work: (shell: Shell) => Promise<T>): Promise<T> {
    const wait = Math.max(1, Math.ceil(this.settings.operationTimeout / 2));
    return this.lock.run(() => {
      this.stats.conversations++;
      return this.#converse({ holder, wait }, async (session) => {
        await session.start(wait + this.settings.connectTimeout, wait);
        return session.whileAlive(work(session));
      });
    });
  }

  #converse<T>(lock: RootShell["lock"], use: (session: ShellSession) => Promise<T>): Promise<T> {
    return this.#session((choice) => this.#talk(choice, this.settings.operationTimeout, lock, use));
  }

  #talk<T>(
    { connection, client }: ChosenConnection,
    operationTimeout: number,
    lock: RootShell["lock"],
    use: (session: ShellSession) => Promise<T>,
  ): Promise<T> {
    const mark = `overlay-${randomBytes(16).toString("hex")}`;
    const sudo = usesSudo(connection);
    const command = rootCommand({ mark, sudo, limit: operationTimeout, ...(lock && { lock }) });
    const context = { name: this.name, user: userOf(connection), sudo, operationTimeout, lost: () => client.lost };
    return client.session(command, this.settings.connectTimeout * 1000, async (channel) => {
      const session = new ShellSession(channel, context, mark);
      try {
        return await use(session);
      } finally {
        await session.end();
      }
    });
  }

  /** A connection may have broken since its last use; nothing has run then, so it is dialled again, once. */
  async #session<T>(use: (choice: ChosenConnection) => Promise<T>, again = true): Promise<T> {
    const choice = await this.clients.get(this.choices);
    try {
      return await use(choice);
    } catch (error) {
      if (!(error instanceof ChannelNotOpened)) throw error;
      if (choice.client.lost && again) return this.#session(use, false);
      throw sessionRefused(this.name, error);
    }
  }
}

const usesSudo = (connection: Connection): boolean => userOf(connection) !== "root" && (connection.sudo ?? true);
