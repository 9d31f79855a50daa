/** Whether an address reaches only this machine. */
export const isLoopback = (host: string): boolean =>
  /^127(\.\d{1,3}){3}$/.test(host) || host === "::1" || host === "::ffff:127.0.0.1";

/** The same for a host as it is written in a URL. */
export const isLoopbackName = (name: string): boolean =>
  name === "localhost" || isLoopback(name.replace(/^\[(.*)\]$/, "$1"));
