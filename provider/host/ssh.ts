import { nameOf, routeOf } from "./address";
import { Gate } from "./gate";
import { type HostStats, SshHost } from "./host";
import { Links, type Ways } from "./links";
import type { Connection, Host, HostSettings, Hosts } from "./types";

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
