import { type Command, InvalidArgumentError } from "commander";
import type { Connection, Host, Hosts } from "../../host/connection";
import { openHosts } from "../../host/ssh/hosts";
import { type Settings, sshSettings } from "../../settings";

export interface Login {
  user?: string;
  key?: string;
}

/** What every command that asks machines has; all else comes from the settings (OVERLAY_PRIVATE_KEY_PATH, an agent, …). */
export const withLogin = (command: Command): Command =>
  command
    .option("--user <name>", "SSH user where a connection names none; default: OVERLAY_USER, else root")
    .option(
      "--key <file>",
      "private key where a connection has none; default: OVERLAY_PRIVATE_KEY_PATH, else an agent",
    );

/** The machines that a command asks. Nobody waits for one to boot here: it answers at the first try, or is named. */
export class Machines implements Hosts {
  readonly #hosts: Hosts;
  readonly #login: Partial<Connection>;

  constructor(settings: Settings, { user, key }: Login) {
    const { hosts, login } = sshSettings(settings);
    this.#hosts = openHosts(hosts);
    this.#login = { ...login, ...(user && { user }), ...(key && { privateKeyPath: key }) };
  }

  connect(connection: Connection): Promise<Host> {
    return this.#hosts.connect({ dialErrorLimit: 1, ...this.#login, ...connection });
  }

  end(): Promise<void> {
    return this.#hosts.end();
  }

  async use<T>(work: (machines: this) => Promise<T>): Promise<T> {
    try {
      return await work(this);
    } finally {
      await this.end();
    }
  }
}

const PLACE = /^(?:([^\s@]+)@)?(?:\[([0-9a-fA-F:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?$/;

/** `[user@]host[:port]`; an IPv6 address with a port stands in brackets. */
export function connectionOf(text: string): Connection {
  const bare = /^[0-9a-fA-F:]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*$/.test(text) ? `[${text}]` : text;
  const [, user, v6, name, port] = PLACE.exec(bare) ?? [];
  const host = v6 ?? name;
  if (host === undefined) throw new InvalidArgumentError("It must be [user@]host[:port].");
  return { host, ...(user && { user }), ...(port && { port: Number(port) }) };
}

/** `NAME=HOST`, given several times. */
export function namedConnection(text: string, others: Record<string, Connection> = {}): Record<string, Connection> {
  const at = text.indexOf("=");
  if (at < 1) throw new InvalidArgumentError("It must be NAME=[user@]host[:port].");
  return { ...others, [text.slice(0, at)]: connectionOf(text.slice(at + 1)) };
}

export const connections = (text: string, others: Connection[] = []): Connection[] => [...others, connectionOf(text)];
