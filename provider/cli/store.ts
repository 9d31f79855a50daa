import { chmod, writeFile } from "node:fs/promises";
import { OverlayError } from "../errors";
import { checkStore, openPool, openStore, placeOf } from "../pool";
import { move, reopen, type Site, snapshot } from "../pool/storage/transfer";
import { keyRing, STORED_KEYS, withKeys } from "../pool/token";
import { command, group, readSecret, withPool, withSettings } from "./command";
import { jsonLine } from "./output";

/** Exit code 1 when something is wrong that is not repaired. */
export const checkCommand = () =>
  command("check", "Check that leases, free space and indexes agree, and that the store's time can be trusted.")
    .option("--repair", "write again what follows from pools and leases, and let the store's clock count as it is now")
    .action(
      withSettings<{ repair?: boolean }>(async (settings, out, { repair = false }) => {
        const findings = await checkStore(settings.store, settings, repair);
        const rows = findings.map((finding) => ({ ...finding, repaired: repair && finding.repairable }));
        out.list(rows, ["pool", "problem", "repairable", "repaired"]);
        if (findings.length === 0) out.say("The store is sound.");
        if (rows.some(({ repaired }) => !repaired)) process.exitCode = 1;
      }),
    );

/** Pools, leases, history, version; the rest follows from them. */
const SOURCE_KEYS = /^[plhv](\/|$)/;
const SECRET_KEYS = /^k\//;

export const dumpCommand = () =>
  command("dump", "Print the store as of one moment, a JSON object a line; never a secret.")
    .option("--all", "also what follows from pools and leases")
    .action(
      withSettings<{ all?: boolean }>(async (settings, _out, { all = false }) => {
        const store = await openStore(settings.store, settings);
        const rows = await snapshot(store).finally(() => store.close());
        for (const [key, value] of rows) {
          if (SECRET_KEYS.test(key)) printRow({ key, secret: true });
          else if (all || SOURCE_KEYS.test(key)) printRow({ key, value: parseStoredRow(value) });
        }
      }),
    );

const printRow = (row: object): void => void process.stdout.write(`${jsonLine(row)}\n`);

/** Most rows are JSON; the others are a word. */
const parseStoredRow = (value: string): unknown => (value.startsWith("{") ? JSON.parse(value) : value);

/** The key ring that signs and verifies tokens: kept beside backups, it makes tokens outlive a lost store. */
export const keysCommand = () =>
  group("keys", "The secret keys that sign tokens.", [exportKeysCommand(), importKeysCommand()]);

const exportKeysCommand = () =>
  command("export", "Write the key ring to a file that only its owner can read. Its content is secret.")
    .argument("<file>", "`-` is standard output")
    .action(
      withPool<object>(async ({ pool, settings, out }, _options, file) => {
        const keys = settings.tokenKeys ?? (await pool.findSecret(STORED_KEYS));
        if (keys === undefined) throw noKeysError();
        if (file === "-") process.stdout.write(`${keys}\n`);
        else await writeSecret(file!, `${keys}\n`);
        out.note(`${keyRing(keys).length} keys written. Whoever has them can make tokens.`);
      }),
    );

const importKeysCommand = () =>
  command("import", "Add the keys in a file to the store's key ring: tokens that they signed are valid again.")
    .argument("<file>", "what `store keys export` wrote; `-` is standard input")
    .action(
      withPool<object>(async ({ pool, settings, out }, _options, file) => {
        const given = await readSecret(file!);
        keyRing(given); // refuses before anything is written
        const kept = await pool.replaceSecret(STORED_KEYS, (before) => withKeys(given, before));
        out.note(`The store has ${keyRing(kept).length} keys now.`);
        if (settings.tokenKeys !== undefined)
          out.note("Setting tokenKeys is used instead of them here: add the keys there, too.");
      }),
    );

/** An existing file gets the narrow mode before it gets the secret. */
async function writeSecret(file: string, text: string): Promise<void> {
  try {
    await writeFile(file, "", { mode: 0o600 });
    await chmod(file, 0o600);
    await writeFile(file, text);
  } catch (error) {
    throw new OverlayError("INPUT_INVALID", `${file} cannot be written: ${(error as Error).message}.`, "Name a file.");
  }
}

const noKeysError = (): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    "The store keeps no keys: no token was given out yet, and setting tokenKeys is not set.",
    "There is nothing to export.",
  );

/** Ends `work` in order on SIGINT and SIGTERM, so that the source is opened again. */
async function runInterruptibly<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const stop = new AbortController();
  const abort = (): void => stop.abort();
  const signals = ["SIGINT", "SIGTERM"] as const;
  for (const signal of signals) process.once(signal, abort);
  try {
    return await work(stop.signal);
  } finally {
    for (const signal of signals) process.removeListener(signal, abort);
  }
}

interface Files {
  fromFile?: string;
  toFile?: string;
}

/** An argument is the URL for which there is no file. */
async function readUrls({ fromFile, toFile }: Files, words: (string | undefined)[]): Promise<[string, string]> {
  if (fromFile === "-" && toFile === "-")
    throw new OverlayError("INPUT_INVALID", "Standard input cannot give both stores.", "Name a file for one of them.");
  const given = words.filter((word) => word !== undefined);
  const urls = [fromFile, toFile].map((file) => (file === undefined ? given.shift() : readSecret(file)));
  const [from, to] = await Promise.all(urls);
  if (from !== undefined && to !== undefined && given.length === 0) return [from, to];
  const fix = "Give each as an argument, or as --from-file and --to-file.";
  throw new OverlayError("INPUT_INVALID", "The two stores, from which and to which, must be given once each.", fix);
}

/** The source is only to be looked at from then on. */
export const migrateCommand = () =>
  command("migrate", "Move a whole pool from one store to another, empty one, and check it there.")
    .argument("[from]", "such as sqlite:/var/lib/overlay/pool.db")
    .argument("[to]", "such as postgres://overlay@db/overlay")
    .option("--from-file <file>", "a file with the first URL, which keeps a password out of process lists")
    .option("--to-file <file>", "a file with the second URL")
    .action(
      withSettings<Files>(async (settings, out, files, ...words) => {
        const [from, to] = await readUrls(files, words);
        // An older version is brought up to date, a newer one refused; one whose move was killed is only looked at.
        await (await openPool(from, { ...settings, looking: true })).end();
        const source = await openStore(from, settings);
        const target = await openStore(to, settings).catch(async (error: unknown) => {
          await source.close();
          throw error;
        });
        const sites = [source, target].map((store, i) => ({ store, place: placeOf([from, to][i]!) })) as [Site, Site];
        const { rows, closedMs } = await runInterruptibly((signal) => move(...sites, { signal })).finally(() =>
          Promise.all([source.close(), target.close()]),
        );
        const closedSeconds = Math.ceil(closedMs) / 1000;
        const pool = await openPool(to, settings);
        const [findings, pools] = [await pool.fsck(), await pool.pools()];
        let leases = 0;
        for (const { name } of pools) leases += (await pool.leases(name)).length;
        await pool.end();
        if (findings.length > 0) {
          const what = `Everything was copied, but the store has ${findings.length} problems: ${findings[0]!.problem}.`;
          throw new OverlayError(
            "STORE_CORRUPT",
            what,
            "They were in the source too: `overlayctl store check --repair` there.",
          );
        }
        out.one({ rows, pools: pools.length, leases, problems: findings.length, closedSeconds });
        out.note(
          `The store was closed for ${closedSeconds} s. Set overlay:store (OVERLAY_STORE) to the new place everywhere: the old one takes no writes any more.`,
        );
      }),
    );

export const reopenCommand = () =>
  command("reopen", "Open a store again whose move was killed before it was done.").action(
    withSettings(async (settings, out) => {
      const store = await openStore(settings.store, settings);
      await reopen(store).finally(() => store.close());
      out.note("The store is open. What the move has copied is out of date; the next move replaces it.");
    }),
  );
