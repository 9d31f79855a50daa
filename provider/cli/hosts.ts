import { type Command, InvalidArgumentError } from "commander";
import { OverlayError } from "../errors";
import type { Connection, Host, Hosts } from "../host/connection";
import { openHosts } from "../host/ssh/hosts";
import type { Lease, Pool } from "../pool";
import { isCommitted } from "../pool/types";
import { NETWORKS, networkOfPool } from "../pool-names";
import { networkSpec, runnerNameOf } from "../reservations/runners";
import { machineName } from "../resources/inputs";
import { type NetworkSettings, readHub } from "../resources/network-settings";
import { type Settings, sshSettings } from "../settings";
import { type Exported, readExport } from "./stack-export";

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

/** The machines of one network, and how to reach them. */
export interface Members {
  network: string;
  hub: Connection;
  runners: Record<string, Connection>;
}

export interface Where {
  network?: string;
  stackExport?: string[];
  hub?: Connection;
  runner?: Record<string, Connection>;
}

/** From exports with their secrets, which know every way in; else from the pool, which knows the machines' names. */
export async function membersOf(pool: () => Promise<Pool>, { network, stackExport, hub, runner }: Where) {
  const given = { ...(hub && { hub }), ...(runner && { runners: runner }) };
  if (network && hub && runner) return { network, hub, runners: runner };
  const found = stackExport ? await fromExports(stackExport, network) : await fromPool(await pool(), network);
  return { ...found, ...given };
}

async function fromExports(files: string[], wanted?: string): Promise<Members> {
  const all = (await Promise.all(files.map(readExport))).flatMap(({ resources }) => resources);
  const networks = new Set(all.map(networkOf).filter((name) => name !== undefined));
  const network = theOne([...networks], wanted, files.join(", "));
  const mine = all.filter((each) => networkOf(each) === network);
  if (mine.some(({ props }) => !props.hubConnection)) throw hidden(files);
  const runners = mine.filter(({ type }) => type === "RunnerSubnet");
  return {
    network,
    hub: mine[0]!.props.hubConnection as Connection,
    runners: Object.fromEntries(runners.map(({ props }) => [String(props.runnerName), props.connection as Connection])),
  };
}

const networkOf = ({ type, props }: Exported): string | undefined =>
  type === "OverlayNetwork"
    ? String(props.networkName)
    : type === "RunnerSubnet"
      ? (props.network as NetworkSettings).networkName
      : undefined;

export const hidden = (files: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `Connections are encrypted in ${files.join(", ")}.`,
    "Make it with --show-secrets, and pass it through a pipe (`-`) rather than a file that stays.",
  );

async function fromPool(pool: Pool, wanted?: string): Promise<Members> {
  const known = (await pool.pools(NETWORKS)).map(({ name }) => networkOfPool(name));
  const network = theOne(known, wanted, "the store");
  const spec = await networkSpec(pool, network);
  const hub = readHub(spec);
  if (!hub) {
    const what = `The store does not know on which machine the hub of ${network} is.`;
    throw new OverlayError("INPUT_INVALID", what, "Name it with --hub, or use --stack-export.");
  }
  const leases = (await pool.leases(spec.name)).filter(isCommitted);
  const named = leases.flatMap((lease) => {
    const [name, machine] = [runnerNameOf(lease, network), machineIn(lease)];
    return name !== undefined && machine !== undefined ? [[name, connectionAt(machine)] as const] : [];
  });
  return { network, hub: connectionAt(hub), runners: Object.fromEntries(named) };
}

/** A runner's lease holds the names of its devices, each with its machine: `host/MACHINE/link/BRIDGE`. */
export const machineIn = ({ names = [] }: Lease): string | undefined =>
  names.map((name) => machineName.safeParse(/^host\/(.*)\/link\//.exec(name)?.[1]).data).find(Boolean);

/** The inverse of `machineOf`. */
export function connectionAt(machine: string): Connection {
  const [place, ...by] = machine.split(" by ");
  return { ...connectionOf(place!), ...(by.length > 0 && { proxy: connectionAt(by.join(" by ")) }) };
}

function theOne(known: string[], wanted: string | undefined, where: string): string {
  if (wanted !== undefined && known.includes(wanted)) return wanted;
  if (wanted === undefined && known.length === 1) return known[0]!;
  const what = wanted === undefined ? `${known.length || "no"} networks` : `no network '${wanted}'`;
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There ${known.length === 1 ? "is" : "are"} ${what} in ${where}${known.length > 0 ? `: ${known.join(", ")}` : ""}.`,
    "Name one of them; without the pool, name the network, --hub and every --runner.",
  );
}
