import { resolve } from "node:path";
import { escapeControls, OverlayError } from "../errors";
import { createMemoryStore } from "./engines/memory/store";
import type { ServerStoreOptions } from "./engines/optimistic";
import { openSqliteStore } from "./engines/sqlite/store";
import { observeStore } from "./observer";
import { type Settings, StoredPool } from "./pool";
import { isServiceUrl } from "./remote/url";
import type { PoolRun } from "./run";
import { ensureLayout } from "./storage/layout";
import type { Store } from "./storage/store";
import { keyRing } from "./token";
import type { Finding } from "./types";

export type { Settings } from "./pool";
export type * from "./types";

export interface OpenSettings extends Settings {
  /** Only for reading: a store that was moved away can be opened, too. */
  allowMoved?: boolean;
  /** For tests: the time of the store. */
  clock?: () => number;
  /** The access token of a service. */
  storeToken?: string | undefined;
}

type Opener = (rest: string, settings: OpenSettings) => Promise<Store>;

/** One line for each engine; `rest` is the URL without its scheme. */
const STORES: Record<string, Opener> = {
  sqlite: (rest, { clock, observer }) => {
    const [path = "", query] = rest.split("?");
    const options = { readOnly: query === "mode=ro", warn: warnOnce, onConflict: observer?.conflict };
    return openSqliteStore(path, { ...options, ...(clock && { clock }) });
  },
  memory: async (_rest, { clock }) => createMemoryStore(clock),
  // Loaded on demand: their clients are large.
  postgres: openPostgres,
  postgresql: openPostgres,
  etcd: openEtcd,
};

async function openPostgres(rest: string, settings: OpenSettings): Promise<Store> {
  return (await import("./engines/postgres/store.js")).openPostgresStore(`postgres:${rest}`, serverOptions(settings));
}

async function openEtcd(rest: string, settings: OpenSettings): Promise<Store> {
  return (await import("./engines/etcd/store.js")).openEtcdStore(`etcd:${rest}`, serverOptions(settings));
}

const serverOptions = ({ clock, observer }: OpenSettings): ServerStoreOptions => ({
  warn: warnOnce,
  onConflict: observer?.conflict,
  ...(clock && { clock }),
});

const warnings = new Set<string>();

/** On stderr, which Pulumi shows. A command may open the same store several times. */
function warnOnce(text: string): void {
  if (!warnings.has(text)) console.error(escapeControls(`warning: ${text}`));
  warnings.add(text);
}

/** The URL of a store for messages: without user, password and files. */
export function placeOf(url: string): string {
  const [base = "", query = ""] = url.replace(/\/\/.*@/, "//").split("?");
  if (base.startsWith("sqlite:")) return `sqlite:${resolve(base.slice(7))}`;
  const where = query.split("&").filter((part) => /^(host|schema)=/.test(part));
  return [base, ...(where.length > 0 ? [where.join("&")] : [])].join("?");
}

/** The rows at a URL, of any layout. */
export async function openStore(url: string, settings: OpenSettings): Promise<Store> {
  refuseService(url);
  const { open, rest } = parseStoreUrl(url);
  return open(rest, settings);
}

/** Rejects a URL that is none of a store, nor of a service. */
export function refuseUnknownUrl(url: string): void {
  if (!isServiceUrl(url)) parseStoreUrl(url);
}

function parseStoreUrl(url: string): { open: Opener; rest: string } {
  const [, scheme = "", rest = ""] = /^([a-z][a-z0-9]*):(.*)$/.exec(url) ?? [];
  const open = STORES[scheme];
  if (!open || (scheme === "sqlite" && rest === "")) {
    const known = [...Object.keys(STORES), "https"].map((name) => `${name}:`);
    throw new OverlayError(
      "SETTING_INVALID",
      `The store '${scheme}:' is not one of ${known.join(", ")}.`,
      "Write it like sqlite:/var/lib/overlay/pool.db.",
    );
  }
  return { open, rest };
}

/** Rejects the URL of a service, for what needs the store itself. */
export function refuseService(url: string): void {
  if (!isServiceUrl(url)) return;
  throw new OverlayError(
    "ACCESS_DENIED",
    `${placeOf(url)} is a service, and this needs the store that it has.`,
    "Run the command on a machine of the service, with the URL of that store.",
  );
}

/** Checks the clock of the store first: the other checks depend on it. */
export async function checkStore(url: string, settings: OpenSettings, repair: boolean): Promise<Finding[]> {
  const store = await openStore(url, settings);
  const clock = await (store.checkClock?.(repair) ?? Promise.resolve(undefined)).finally(() => store.close());
  const found = clock ? [{ pool: "", ...clock }] : [];
  if (clock && !(repair && clock.repairable)) return found;
  const pool = await openPool(url, { ...settings, allowMoved: !repair });
  return [...found, ...(await pool.fsck({ repair }).finally(() => pool.end()))];
}

/** The pool at a URL such as `sqlite:/var/lib/overlay/pool.db` (`?mode=ro`: previews only), `memory:` or `https://overlay.example`. */
export async function openPool(url: string, settings: OpenSettings): Promise<PoolRun> {
  if (settings.tokenKeys !== undefined) keyRing(settings.tokenKeys); // refuses short ones
  if (isServiceUrl(url)) return (await import("./remote/index.js")).openRemotePool(url, settings);
  const store = observeStore(await openStore(url, settings), settings.observer);
  await ensureLayout(store, settings.allowMoved).catch(async (error: unknown) => {
    await store.close();
    throw error;
  });
  return new StoredPool(store, { ...settings, place: placeOf(url) });
}
