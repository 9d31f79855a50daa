import type { Write } from "./store";

/** The keys of secrets (`secretKey`). Engines with users of their own keep these rows apart, so that reading can be granted without them. */
export const SECRETS = { from: "k/", to: "k0" };

export const hasSecret = (writes: Write[]): boolean => writes.some(([key]) => key >= SECRETS.from && key < SECRETS.to);

/** Whether keys with `from` ≤ key < `to` may be those of secrets. */
export const meetsSecrets = ({ from, to }: { from: string; to: string }): boolean =>
  from < SECRETS.to && to > SECRETS.from;
