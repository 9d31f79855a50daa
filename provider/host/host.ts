import { randomBytes } from "node:crypto";
import type { ClientChannel } from "ssh2";
import { nameOf, userOf } from "./address";
import type { Gate } from "./gate";
import { NotOpened } from "./link";
import type { Links, Way, Ways } from "./links";
import { type RootShell, rootCommand } from "./root-command";
import { Conversation } from "./shell";
import { sessionRefused } from "./shell-errors";
import { type Connection, type Host, type HostSettings, machineOf, type Result, type Shell } from "./types";

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

  exec(script: string): Promise<Result> {
    this.stats.execs++;
    return this.#converse(undefined, (talk) => talk.once(script));
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
    const mark = `overlay-${randomBytes(16).toString("hex")}`;
    const { operationTimeout } = this.settings;
    return this.#session(
      (sudo) => rootCommand({ mark, sudo, limit: operationTimeout, ...(lock && { lock }) }),
      async (channel, { connection, link }) => {
        const place = { name: this.name, user: userOf(connection), sudo: bySudo(connection), operationTimeout };
        const talk = new Conversation(channel, { ...place, lost: () => link.lost }, mark);
        try {
          return await use(talk);
        } finally {
          await talk.end();
        }
      },
    );
  }

  /** A connection may have died unnoticed since it was last used; nothing has run then, so it is dialled anew, once. */
  async #session<T>(
    command: (sudo: boolean) => string,
    use: (channel: ClientChannel, way: Way) => Promise<T>,
    again = true,
  ): Promise<T> {
    const way = await this.links.get(this.ways);
    const limit = this.settings.connectTimeout * 1000;
    try {
      return await way.link.session(command(bySudo(way.connection)), limit, (channel) => use(channel, way));
    } catch (error) {
      if (!(error instanceof NotOpened)) throw error;
      if (way.link.lost && again) return this.#session(command, use, false);
      throw sessionRefused(this.name, error);
    }
  }
}

const bySudo = (connection: Connection): boolean => userOf(connection) !== "root" && (connection.sudo ?? true);
