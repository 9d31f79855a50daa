import { OverlayError } from "../../errors";
import { openPool, openStore, placeOf } from "../../pool";
import { move, type Site } from "../../pool/transfer";
import { command, guarded } from "../command";
import { readSecret } from "../secret-file";

/** Ends `work` in order on SIGINT and SIGTERM, so that the source is opened again. */
async function interruptible<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
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
async function urlsOf({ fromFile, toFile }: Files, words: (string | undefined)[]): Promise<[string, string]> {
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
      guarded<Files>(async (settings, out, files, ...words) => {
        const [from, to] = await urlsOf(files, words);
        // An older version is brought up to date, a newer one refused; one whose move was killed is only looked at.
        await (await openPool(from, { ...settings, looking: true })).end();
        const source = await openStore(from, settings);
        const target = await openStore(to, settings).catch(async (error: unknown) => {
          await source.close();
          throw error;
        });
        const sites = [source, target].map((store, i) => ({ store, place: placeOf([from, to][i]!) })) as [Site, Site];
        const { rows, closedMs } = await interruptible((signal) => move(...sites, { signal })).finally(() =>
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
