import type { ServerStoreOptions } from "../../../provider/pool/engines/optimistic";
import type { Store, Tx } from "../../../provider/pool/storage/store";
import type { FaultyProxy } from "./faulty-proxy";

/** A server under test, reached directly or through a proxy. */
export interface Remote {
  /** The URL of a new store. */
  newUrl(proxy?: FaultyProxy): string;
  open(url: string, options?: ServerStoreOptions): Promise<Store>;
  startProxy(): Promise<FaultyProxy>;
  /** Bytes that are in the request of a commit, and in no other request. They are in one chunk: in a header, or in the body. */
  commitBytes: string;
  /**
   * All that the store at a URL consists of, except its secrets: what a user without the right to read secrets can read, as in
   * docs/stores.md.
   */
  dumpWithoutSecrets(url: string): Promise<string>;
}

/** The URL of the same store through another proxy. */
export const reroute = (url: string, from: FaultyProxy, to: FaultyProxy): string =>
  from.ports.reduce((text, port, i) => text.replace(`:${port}`, `:${to.ports[i]}`), url);

export const increment = async (tx: Tx): Promise<number> => {
  const count = Number((await tx.get("n")) ?? 0) + 1;
  await tx.write([["n", String(count)]]);
  return count;
};
export const get =
  (key: string) =>
  async (tx: Tx): Promise<string | undefined> =>
    await tx.get(key);
export const put =
  (key: string, value: string | null) =>
  async (tx: Tx): Promise<void> => {
    await tx.write([[key, value]]);
  };
