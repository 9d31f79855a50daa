import type { Connection } from "./types";

export const userOf = (connection: Connection): string => connection.user ?? "root";

export const portOf = (connection: Connection): number => connection.port ?? 22;

/** For messages and counters: `10.254.0.11`, `10.254.0.11:2222`, `[fd00::1]:2222`. */
export function nameOf(connection: Connection): string {
  const { host } = connection;
  const port = portOf(connection);
  if (port === 22) return host;
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Equal in all that was given; what was given as undefined was not given. */
export const sameConnection = (a: Connection, b: Connection): boolean => canonical(a) === canonical(b);

const canonical = (connection: object): string =>
  JSON.stringify(connection, (_key, value) =>
    value instanceof Object ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value,
  );

/** Equal routes share one SSH connection: the same user on the same machine by the same way. */
export function routeOf(connection: Connection): string {
  const way = connection.proxy ? `${routeOf(connection.proxy)} > ` : "";
  return `${way}${userOf(connection)}@[${connection.host.toLowerCase()}]:${portOf(connection)}`;
}
