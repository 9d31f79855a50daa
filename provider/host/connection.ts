/** How to reach a host: the shape of `@pulumi/command`'s `remote.ConnectionArgs`, plus `privateKeyPath` and `sudo`. */
export interface Connection {
  host: string;
  port?: number | undefined;
  user?: string | undefined;
  password?: string | undefined;
  privateKey?: string | undefined;
  privateKeyPassword?: string | undefined;
  privateKeyPath?: string | undefined;
  agentSocketPath?: string | undefined;
  /** Expected public key of the server, `ssh-ed25519 AAAA…`; absent: known_hosts decides. */
  hostKey?: string | undefined;
  /** How many failed dials in a row before giving up; 0: no limit but the operation timeout. */
  dialErrorLimit?: number | undefined;
  /** Seconds for one dial. */
  perDialTimeout?: number | undefined;
  proxy?: Omit<Connection, "proxy" | "sudo"> | undefined;
  /** Run as root through `sudo -n`; default true for a user other than root. */
  sudo?: boolean | undefined;
}

/** Identifies a host by its address and its jump hosts. Credentials do not matter. */
export function hostId({ host, port, proxy }: Pick<Connection, "host" | "port" | "proxy">): string {
  const place = port === undefined || port === 22 ? host : `${host}:${port}`;
  return proxy ? `${place} by ${hostId(proxy)}` : place;
}

export interface HostSettings {
  connectTimeout: number;
  operationTimeout: number;
  parallelHosts: number;
  /** Files in known_hosts form, first match wins; default `~/.ssh/known_hosts` and `/etc/ssh/ssh_known_hosts`. */
  knownHosts?: string[];
  /** `accept`: an unknown host key is accepted and remembered for this process only; default `refuse`. */
  unknownHostKey?: "refuse" | "accept";
}

/** Tells the user what is being done. */
export type Report = (text: string) => void;

/** Work on one host, which the user may be told about until it ends. */
export interface Phase {
  report: Report;
  end(): void;
}

export const NO_PHASE: Phase = { report: () => {}, end: () => {} };

export interface CommandResult {
  code: number;
  stdout: string;
  stderr: string;
}

/** A root shell on the host, under the host's lock. */
export interface Shell {
  /** `step`: what the script does, for errors: `reading its state`; by default its first line. */
  run(script: string, step?: string): Promise<CommandResult>;
}

export interface Host {
  /** For messages: `10.254.0.11`, with the port when it is not 22. */
  readonly name: string;
  /** See `hostId`. */
  readonly id: string;
  /** Runs a script as root without the lock, for reading. `anew`: over a new connection, within so many seconds. */
  exec(script: string, step?: string, options?: { anew?: number }): Promise<CommandResult>;
  /** Holds the host's lock while `work` runs; `HOST_LOCKED` names the holder if the lock is not free in time. */
  withLock<T>(holder: string, work: (shell: Shell) => Promise<T>): Promise<T>;
}

export interface Hosts {
  /** One SSH connection per host and process, shared; dials again as `DialRetries` decides. Fallbacks: on SSH_AUTH. */
  connect(connection: Connection, fallbacks?: Connection[]): Promise<Host>;
  end(): Promise<void>;
}

export const userOf = (connection: Connection): string => connection.user ?? "root";

export const portOf = (connection: Connection): number => connection.port ?? 22;

/** For messages and counters: `10.254.0.11`, `10.254.0.11:2222`, `[fd00::1]:2222`. */
export function connectionName(connection: Connection): string {
  const { host } = connection;
  const port = portOf(connection);
  if (port === 22) return host;
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Whether two connections are equal. A property with the value undefined counts as absent. */
export const isSameConnection = (a: Connection, b: Connection): boolean => canonical(a) === canonical(b);

const canonical = (connection: object): string =>
  JSON.stringify(connection, (_key, value) =>
    value instanceof Object ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value,
  );

/** Connections with equal keys share one SSH connection: the same user on the same host by the same jump hosts. */
export function connectionKey(connection: Connection): string {
  const way = connection.proxy ? `${connectionKey(connection.proxy)} > ` : "";
  return `${way}${userOf(connection)}@[${connection.host.toLowerCase()}]:${portOf(connection)}`;
}
