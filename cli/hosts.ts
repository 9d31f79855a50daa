import { type Command, InvalidArgumentError } from "commander";
import { OverlayError } from "../provider/errors";
import type { Connection, Host, Hosts } from "../provider/host/connection";
import { openHosts } from "../provider/host/ssh/hosts";
import type { Ipam, Lease } from "../provider/ipam";
import { listSpecs } from "../provider/ipam/interface";
import { isCommitted } from "../provider/ipam/types";
import { NETWORKS, networkOfPool } from "../provider/pool-names";
import { readRunnerName, requireNetwork } from "../provider/reservations/runners";
import { hostIdText } from "../provider/resources/inputs";
import { type NetworkSettings, readHub } from "../provider/resources/network-settings";
import { type Settings, sshSettings } from "../provider/settings";
import { type ExportedResource, readExport } from "./stack-export";

/** Hosts of commands: SSH options, and the members of a network from exports, options or the store. */

export interface Login {
  user?: string;
  key?: string;
}

/** Options of commands that use SSH. All other settings come from the environment. */
export const withLoginOptions = (command: Command): Command =>
  command
    .option("--user <name>", "SSH user for connections without one; default: OVERLAY_USER, else root")
    .option(
      "--key <file>",
      "private key for connections without one; default: OVERLAY_PRIVATE_KEY_PATH, else an agent",
    );

/** The hosts of a command. It dials each host once, and does not wait for one that is booting. */
export class CliHosts implements Hosts {
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

  async use<T>(work: (hosts: this) => Promise<T>): Promise<T> {
    try {
      return await work(this);
    } finally {
      await this.end();
    }
  }
}

const HOST_PATTERN = /^(?:([^\s@]+)@)?(?:\[([0-9a-fA-F:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?$/;

/** Parses `[user@]host[:port]`; an IPv6 address with a port is in brackets. */
export function parseConnection(text: string): Connection {
  const bare = /^[0-9a-fA-F:]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*$/.test(text) ? `[${text}]` : text;
  const [, user, v6, name, port] = HOST_PATTERN.exec(bare) ?? [];
  const host = v6 ?? name;
  if (host === undefined) throw new InvalidArgumentError("It must be [user@]host[:port].");
  return { host, ...(user && { user }), ...(port && { port: Number(port) }) };
}

/** Parses `NAME=HOST`; the option can be repeated. */
export function parseNamedConnection(
  text: string,
  others: Record<string, Connection> = {},
): Record<string, Connection> {
  const at = text.indexOf("=");
  if (at < 1) throw new InvalidArgumentError("It must be NAME=[user@]host[:port].");
  return { ...others, [text.slice(0, at)]: parseConnection(text.slice(at + 1)) };
}

export const parseConnections = (text: string, others: Connection[] = []): Connection[] => [
  ...others,
  parseConnection(text),
];

/** The hosts of one network, and how to reach them. */
export interface NetworkMembers {
  network: string;
  hub: Connection;
  runners: Record<string, Connection>;
}

export interface MemberOptions {
  network?: string;
  stackExport?: string[];
  hub?: Connection;
  runner?: Record<string, Connection>;
}

/** From exports with secrets, which have all connections, or from the pool, which has the addresses of the hosts. */
export async function findMembers(pool: () => Promise<Ipam>, { network, stackExport, hub, runner }: MemberOptions) {
  const given = { ...(hub && { hub }), ...(runner && { runners: runner }) };
  if (network && hub && runner) return { network, hub, runners: runner };
  const found = stackExport
    ? await membersFromExports(stackExport, network)
    : await membersFromPool(await pool(), network);
  return { ...found, ...given };
}

async function membersFromExports(files: string[], requested?: string): Promise<NetworkMembers> {
  const all = (await Promise.all(files.map(readExport))).flatMap(({ resources }) => resources);
  const networks = new Set(all.map(networkOfResource).filter((name) => name !== undefined));
  const network = pickNetwork([...networks], requested, files.join(", "));
  const mine = all.filter((each) => networkOfResource(each) === network);
  if (mine.some(({ props }) => !props.hubConnection)) throw hiddenConnectionsError(files);
  const runners = mine.filter(({ type }) => type === "RunnerSubnet");
  return {
    network,
    hub: mine[0]!.props.hubConnection as Connection,
    runners: Object.fromEntries(runners.map(({ props }) => [String(props.runnerName), props.connection as Connection])),
  };
}

const networkOfResource = ({ type, props }: ExportedResource): string | undefined =>
  type === "OverlayNetwork"
    ? String(props.networkName)
    : type === "RunnerSubnet"
      ? (props.network as NetworkSettings).networkName
      : undefined;

const hiddenConnectionsError = (files: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `Connections are encrypted in ${files.join(", ")}.`,
    "Run `pulumi stack export --show-secrets`, and pass its output through a pipe (`-`) instead of a file.",
  );

async function membersFromPool(pool: Ipam, requested?: string): Promise<NetworkMembers> {
  const known = (await listSpecs(pool, { prefix: NETWORKS })).map(({ name }) => networkOfPool(name));
  const network = pickNetwork(known, requested, "the store");
  const spec = await requireNetwork(pool, network);
  const hub = readHub(spec);
  if (!hub) {
    const what = `The store does not have the host of the hub of ${network}.`;
    throw new OverlayError("INPUT_INVALID", what, "Give it with --hub, or use --stack-export.");
  }
  const leases = (await pool.leases(spec.name)).filter(isCommitted);
  const named = leases.flatMap((lease) => {
    const [name, id] = [readRunnerName(lease, network), hostIdOfLease(lease)];
    return name !== undefined && id !== undefined ? [[name, parseHostId(id)] as const] : [];
  });
  return { network, hub: parseHostId(hub), runners: Object.fromEntries(named) };
}

/** A runner's lease has names of its devices, with the host: `host/HOST/link/BRIDGE`. */
export const hostIdOfLease = ({ names = [] }: Lease): string | undefined =>
  names.map((name) => hostIdText.safeParse(/^host\/(.*)\/link\//.exec(name)?.[1]).data).find(Boolean);

/** The inverse of `hostId`. */
export function parseHostId(id: string): Connection {
  const [place, ...by] = id.split(" by ");
  return { ...parseConnection(place!), ...(by.length > 0 && { proxy: parseHostId(by.join(" by ")) }) };
}

function pickNetwork(known: string[], requested: string | undefined, where: string): string {
  if (requested !== undefined && known.includes(requested)) return requested;
  if (requested === undefined && known.length === 1) return known[0]!;
  const what = requested === undefined ? `${known.length || "no"} networks` : `no network '${requested}'`;
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There ${known.length === 1 ? "is" : "are"} ${what} in ${where}${known.length > 0 ? `: ${known.join(", ")}` : ""}.`,
    "Give one of them. Without a store, give the network, --hub and each --runner.",
  );
}
