import { chmod, writeFile } from "node:fs/promises";
import { z } from "zod";
import { OverlayError } from "../provider/errors";
import { checkStore, openEngine, openIpam, placeOf } from "../provider/ipam";
import { listSpecs } from "../provider/ipam/interface";
import { TABLES } from "../provider/ipam/store/schema";
import { keyRing, rotateKeys, STORED_KEYS, withKeys } from "../provider/ipam/token";
import { move, reopen, type Site, snapshot } from "../provider/ipam/transfer";
import { command, group, parseOptions, readSecret, requireFile, withNewPool, withPool, withSettings } from "./command";
import { jsonLine } from "./output";

/** Exit code 1 if a problem is not repaired. */
export const checkCommand = () =>
  command("check", "Check that leases, free space and indexes agree, and that the store's clock is right.")
    .option("--repair", "write derived rows again, and accept the store's clock as it is now")
    .action(
      withSettings<{ repair?: boolean }>(async (settings, out, { repair = false }) => {
        await requireFile(settings.store);
        const findings = await checkStore(settings.store, settings, repair);
        const rows = findings.map((finding) => ({ ...finding, repaired: repair && finding.repairable }));
        out.list(rows, ["pool", "problem", "repairable", "repaired"]);
        if (findings.length === 0) out.say("The store has no problems.");
        if (rows.some(({ repaired }) => !repaired)) process.exitCode = 1;
      }),
    );

export const dumpCommand = () =>
  command("dump", "Print a consistent snapshot of the store, one JSON object per line, without secrets.").action(
    withSettings(async ({ store }) => {
      await requireFile(store);
      const engine = await openEngine(store);
      try {
        for await (const found of snapshot(engine)) {
          if ("head" in found) printRow("store", { one: 1, ...found.head });
          else for (const row of found.rows) printRow(found.table, row);
        }
      } finally {
        await engine.close();
      }
    }),
  );

/** The columns that are not NULL. Texts of documents are secret, such as those of webhooks, but for how far these have come. */
function printRow(name: string, row: object): void {
  const { columns, encode } = TABLES.find((table) => table.name === name)!;
  const stored = encode(row).map((value, i) => [columns[i]!.name, value]);
  const isSecret = "kind" in row && row.kind !== "delivery";
  const shown = stored.filter(([column, value]) => value !== null && !(isSecret && column === "value"));
  process.stdout.write(`${jsonLine({ table: name, ...Object.fromEntries(shown) })}\n`);
}

/** The key ring that signs and verifies tokens. With a copy of it, tokens stay valid after the store is lost. */
export const keysCommand = () =>
  group("keys", "The secret keys that sign tokens.", [exportKeysCommand(), importKeysCommand(), rotateKeysCommand()]);

const exportKeysCommand = () =>
  command("export", "Write the key ring to a file that only its owner can read. Its content is secret.")
    .argument("<file>", "`-` is standard output")
    .action(
      withPool<object>(async ({ pool, settings, out }, _options, file) => {
        const keys = settings.tokenKeys ?? (await pool.admin.findSecret(STORED_KEYS));
        if (keys === undefined) throw noKeysError();
        if (file === "-") process.stdout.write(`${keys}\n`);
        else await writeSecret(file!, `${keys}\n`);
        out.note(`${keyRing(keys).length} keys written. They are secret: with them, valid tokens can be made.`);
      }),
    );

const importKeysCommand = () =>
  command("import", "Add the keys in a file to the store's key ring: tokens that they signed are valid again.")
    .argument("<file>", "the output of `store keys export`; `-` is standard input")
    .action(
      withNewPool<object>(async ({ pool, settings, out }, _options, file) => {
        const given = await readSecret(file!);
        keyRing(given); // rejects invalid keys before the write
        const kept = await pool.admin.replaceSecret(STORED_KEYS, (before) => withKeys(given, before));
        out.note(`The store has ${keyRing(kept).length} keys now.`);
        if (settings.tokenKeys !== undefined)
          out.note("The setting tokenKeys overrides the store's keys here: add the keys there, too.");
      }),
    );

const keepInput = z.object({ keep: z.coerce.number().int().min(0).optional() });

const rotateKeysCommand = () =>
  command("rotate", "Sign tokens with a new key from now on.")
    .option("--keep <n>", "how many of the older keys still verify tokens; default: all")
    .action(
      withPool<object>(async ({ pool, settings, out }, options) => {
        const { keep = Infinity } = parseOptions(keepInput, options);
        const kept = await pool.admin.replaceSecret(STORED_KEYS, (before) => rotateKeys(before, keep));
        out.note(`The store has ${keyRing(kept).length} keys now. Tokens that others have signed are refused.`);
        if (settings.tokenKeys !== undefined)
          out.note("The setting tokenKeys overrides the store's keys here: change the keys there, too.");
      }),
    );

/** The mode of an existing file is changed before the secret is written. */
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
    "The store has no keys: no token was made yet, and the setting tokenKeys is not set.",
    "There is nothing to export.",
  );

/** Aborts `work` on SIGINT and SIGTERM, so that it can open the source again. */
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

/** URLs from files and arguments. */
async function readUrls({ fromFile, toFile }: Files, words: (string | undefined)[]): Promise<[string, string]> {
  if (fromFile === "-" && toFile === "-")
    throw new OverlayError(
      "INPUT_INVALID",
      "Both --from-file and --to-file are standard input.",
      "Give a file for one of them.",
    );
  const given = words.filter((word) => word !== undefined);
  const urls = [fromFile, toFile].map((file) => (file === undefined ? given.shift() : readSecret(file)));
  const [from, to] = await Promise.all(urls);
  if (from !== undefined && to !== undefined && given.length === 0) return [from, to];
  const fix = "Give each as an argument, or as --from-file and --to-file.";
  throw new OverlayError("INPUT_INVALID", "The source and the target store must each be given once.", fix);
}

/** Afterwards the source is read-only. */
export const migrateCommand = () =>
  command("migrate", "Move all data from one store to another, empty one, and check it there.")
    .argument("[from]", "the source, such as sqlite:/var/lib/overlay/pool.db")
    .argument("[to]", "the target, such as postgres://overlay@db/overlay")
    .option("--from-file <file>", "a file with the source's URL, so that a password is not in process lists")
    .option("--to-file <file>", "a file with the target's URL")
    .action(
      withSettings<Files>(async (settings, out, files, ...words) => {
        const [from, to] = await readUrls(files, words);
        await requireFile(from);
        const source: Site = { engine: await openEngine(from), place: placeOf(from) };
        const moving = openEngine(to).then((engine) =>
          runInterruptibly((signal) => move(source, { engine, place: placeOf(to) }, { signal })).finally(() =>
            engine.close(),
          ),
        );
        const { rows, closedMs } = await moving.finally(() => source.engine.close());
        const closedSeconds = Math.ceil(closedMs) / 1000;
        const pool = await openIpam(to, settings);
        const [findings, pools] = [await pool.admin.fsck(), await listSpecs(pool)];
        let leases = 0;
        for (const { name } of pools) leases += (await pool.leases(name)).length;
        await pool.end();
        if (findings.length > 0) {
          const what = `All rows were copied, but the store has ${findings.length} problems: ${findings[0]!.problem}.`;
          throw new OverlayError(
            "STORE_CORRUPT",
            what,
            "The source has them, too: run `overlayctl store check --repair` there.",
          );
        }
        out.one({ rows, pools: pools.length, leases, problems: findings.length, closedSeconds });
        out.note(
          `The store was closed for ${closedSeconds} s. Set overlay:store (OVERLAY_STORE) to the new URL everywhere: the old store rejects writes.`,
        );
      }),
    );

export const reopenCommand = () =>
  command("reopen", "Open a store again after a `store migrate` from it was killed.").action(
    withSettings(async (settings, out) => {
      await requireFile(settings.store);
      const engine = await openEngine(settings.store);
      await reopen(engine).finally(() => engine.close());
      out.note("The store is open. The next `store migrate` replaces what the killed one has copied.");
    }),
  );
