import { resolve } from "node:path";
import { escapeControls, OverlayError } from "../errors";
import type { Finding } from "./decide/fsck";
import { LocalIpam } from "./ipam";
import { isServiceUrl } from "./remote/url";
import type { Observer } from "./session";
import { Session } from "./session";
import { openSqlite } from "./store/sqlite";
import type { Engine } from "./store/store";
import { keyRing } from "./token";
import type { Store } from "./types";

export type * from "./types";

export interface Settings {
  /** Lifetime of an offer, in seconds. */
  offerTtl: number;
  /** How long values of ended leases are given to no other owner, in seconds. */
  quarantine: number;
  /** The user, as `USER@HOST`. */
  actor?: string | undefined;
  /** The keys of tokens; default: the store has one. */
  tokenKeys?: string | undefined;
  observer?: Observer | undefined;
  /** Only for reading: a store that was moved away can be opened, too. */
  allowMoved?: boolean | undefined;
  /** For tests: the time of stores without a clock of their own. */
  clock?: (() => number) | undefined;
  /** The access token of a service. */
  storeToken?: string | undefined;
}

type Opener = (rest: string, settings: Pick<Settings, "clock">) => Promise<Engine>;

/** One line for each engine; `rest` is the URL without its scheme. */
const ENGINES: Record<string, Opener> = {
  sqlite: (rest, { clock }) => {
    const [path = "", query] = rest.split("?");
    return openSqlite(path, { readOnly: query === "mode=ro", ...(clock && { clock }) });
  },
  memory: (rest, { clock }) => openSqlite(rest === "" ? ":memory:" : `memory:${rest}`, clock ? { clock } : {}),
  // Loaded on demand: their clients are large.
  postgres: openPostgres,
  postgresql: openPostgres,
  etcd: openEtcd,
};

async function openPostgres(rest: string, { clock }: Pick<Settings, "clock">): Promise<Engine> {
  const options = { warn: warnOnce, ...(clock && { clock }) };
  return (await import("./store/postgres.js")).openPostgres(`postgres:${rest}`, options);
}

async function openEtcd(rest: string, { clock }: Pick<Settings, "clock">): Promise<Engine> {
  const options = { warn: warnOnce, ...(clock && { clock }) };
  return (await import("./store/etcd/engine.js")).openEtcd(`etcd:${rest}`, options);
}

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

/** The tables at a URL. */
export async function openEngine(url: string, settings: Pick<Settings, "clock"> = {}): Promise<Engine> {
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
  const open = ENGINES[scheme];
  if (open && !(scheme === "sqlite" && rest === "")) return { open, rest };
  const known = [...Object.keys(ENGINES), "https"].map((name) => `${name}:`);
  throw new OverlayError(
    "SETTING_INVALID",
    `The store '${scheme}:' is not one of ${known.join(", ")}.`,
    "Write it like sqlite:/var/lib/overlay/pool.db.",
  );
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
export async function checkStore(url: string, settings: Settings, repair: boolean): Promise<Finding[]> {
  const engine = await openEngine(url, settings);
  const clock = await (engine.checkClock?.(repair) ?? Promise.resolve(undefined)).finally(() => engine.close());
  const found = clock ? [{ pool: "", ...clock }] : [];
  if (clock && !(repair && clock.repairable)) return found;
  const ipam = await openIpam(url, { ...settings, allowMoved: !repair });
  return [...found, ...(await ipam.admin.fsck({ repair }).finally(() => ipam.end()))];
}

/** The store at a URL such as `sqlite:/var/lib/overlay/pool.db` (`?mode=ro`: previews only), `memory:` or `https://overlay.example`. */
export async function openIpam(url: string, settings: Settings): Promise<Store> {
  if (settings.tokenKeys !== undefined) keyRing(settings.tokenKeys); // refuses short ones
  const store = isServiceUrl(url)
    ? (await import("./remote/client.js")).openRemoteIpam(url, settings)
    : new LocalIpam(new Session(await openEngine(url, settings), { ...settings, place: placeOf(url) }));
  await store.describe().catch(async (error: unknown) => {
    await store.end();
    throw error;
  });
  return store;
}
