import type { Facts } from "./facts";

/** Devices that have this address, with whatever prefix. */
export const devicesWith = (address: string, { addresses }: Pick<Facts, "addresses">): string[] =>
  [...addresses].filter((text) => text.startsWith(`${address}/`)).map((text) => text.split(" ")[1]!);
