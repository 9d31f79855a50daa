import { nameOf, routeOf } from "./address";
import { Gate } from "./gate";
import { SshHost } from "./host";
import { Links, type Ways } from "./links";
import type { Connection, Host, HostSettings, Hosts } from "./types";

/** How often a host was talked to; what a benchmark counts. */
export interface HostStats {
  connections: number;
  execs: number;
  conversations: number;
}

export interface SshHosts extends Hosts {
  /** `fallbacks` are tried in order when the host refuses the credentials, and for no other reason: keys get rotated. */
  connect(connection: Connection, fallbacks?: Connection[]): Promise<Host>;
  stats(): Record<string, HostStats>;
}

export interface SshOptions {
  /** Seconds between two keepalives; a host that misses three in a row is given up. */
  keepalive?: number;
}

export function openHosts(settings: HostSettings, options: SshOptions = {}): SshHosts {
  const stats: Record<string, HostStats> = {};
  const locks = new Map<string, Gate>();
  const statsOf = (connection: Connection) =>
    (stats[nameOf(connection)] ??= { connections: 0, execs: 0, conversations: 0 });
  const links = new Links(settings, options.keepalive ?? 5, (connection) => statsOf(connection).connections++);

  return {
    async connect(connection, fallbacks = []) {
      const ways: Ways = [connection, ...fallbacks];
      await links.get(ways);
      const lock = locks.get(routeOf(connection)) ?? new Gate(1);
      locks.set(routeOf(connection), lock);
      return new SshHost(settings, links, ways, lock, statsOf(connection));
    },
    end: () => links.end(),
    stats: () => structuredClone(stats),
  };
}
