import { randomBytes } from "node:crypto";
import {
  type Connection,
  type Host,
  type HostSettings,
  type Hosts,
  machineOf,
  nameOf,
  type Result,
  routeOf,
  type Shell,
  userOf,
} from "../connection";
import { Gate, NotOpened } from "./client";
import { Links, type Way, type Ways } from "./clients";
import { Conversation } from "./shell";
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
  const locks = new Map<string, Gate>();
  const statsOf = (connection: Connection) =>
    (stats[nameOf(connection)] ??= { connections: 0, execs: 0, conversations: 0 });
  const links = new Links(
    settings,
    options.keepalive ?? 5,
    (connection) => statsOf(connection).connections++,
    options.notify ?? (() => {}),
  );

  return {
    async connect(connection, fallbacks = []) {
      const ways: Ways = [connection, ...fallbacks];
      const { connection: way } = await links.get(ways);
      const lock = locks.get(routeOf(way)) ?? new Gate(1);
      locks.set(routeOf(way), lock);
      // The way that worked comes first from now on: the host is not to see the refused key with every command.
      return new SshHost(settings, links, [way, ...ways.filter((other) => other !== way)], lock, statsOf(way));
    },
    end: () => links.end(),
    stats: () => structuredClone(stats),
  };
}

/** How often a host was talked to; what a benchmark counts. */
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
    private readonly links: Links,
    private readonly ways: Ways,
    /** Who waits for the host's lock in this process waits here, and not on a channel: sshd allows only ten. */
    private readonly lock: Gate,
    private readonly stats: HostStats,
  ) {
    this.name = nameOf(ways[0]);
    this.machine = machineOf(ways[0]);
  }

  async exec(script: string, { anew }: { anew?: number } = {}): Promise<Result> {
    this.stats.execs++;
    if (anew === undefined) return this.#converse(undefined, (talk) => talk.once(script));
    const [connection] = this.ways;
    const link = await this.links.anew(connection, anew);
    try {
      return await this.#talk({ connection, link }, anew, undefined, (talk) => talk.once(script));
    } finally {
      await link.end();
    }
  }

  locked<T>(holder: string, work: (shell: Shell) => Promise<T>): Promise<T> {
    const wait = Math.max(1, Math.ceil(this.settings.operationTimeout / 2));
    return this.lock.pass(() => {
      this.stats.conversations++;
      return this.#converse({ holder, wait }, async (talk) => {
        await talk.begin(wait + this.settings.connectTimeout, wait);
        return talk.during(work(talk));
      });
    });
  }

  #converse<T>(lock: RootShell["lock"], use: (talk: Conversation) => Promise<T>): Promise<T> {
    return this.#session((way) => this.#talk(way, this.settings.operationTimeout, lock, use));
  }

  #talk<T>(
    { connection, link }: Way,
    operationTimeout: number,
    lock: RootShell["lock"],
    use: (talk: Conversation) => Promise<T>,
  ): Promise<T> {
    const mark = `overlay-${randomBytes(16).toString("hex")}`;
    const sudo = bySudo(connection);
    const command = rootCommand({ mark, sudo, limit: operationTimeout, ...(lock && { lock }) });
    const place = { name: this.name, user: userOf(connection), sudo, operationTimeout, lost: () => link.lost };
    return link.session(command, this.settings.connectTimeout * 1000, async (channel) => {
      const talk = new Conversation(channel, place, mark);
      try {
        return await use(talk);
      } finally {
        await talk.end();
      }
    });
  }

  /** A connection may have died unnoticed since it was last used; nothing has run then, so it is dialled anew, once. */
  async #session<T>(use: (way: Way) => Promise<T>, again = true): Promise<T> {
    const way = await this.links.get(this.ways);
    try {
      return await use(way);
    } catch (error) {
      if (!(error instanceof NotOpened)) throw error;
      if (way.link.lost && again) return this.#session(use, false);
      throw sessionRefused(this.name, error);
    }
  }
}

const bySudo = (connection: Connection): boolean => userOf(connection) !== "root" && (connection.sudo ?? true);
