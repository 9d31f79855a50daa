import { chmod, writeFile } from "node:fs/promises";
import { OverlayError } from "../../errors";
import { keyRing, STORED_KEYS, withKeys } from "../../pool/token";
import { command, group, withPool } from "../command";
import { readSecret } from "../secret-file";

/** The key ring that signs and verifies tokens: kept beside backups, it makes tokens outlive a lost store. */
export const keysCommand = () => group("keys", "The secret keys that sign tokens.", [exportCommand(), importCommand()]);

const exportCommand = () =>
  command("export", "Write the key ring to a file that only its owner can read. Its content is secret.")
    .argument("<file>", "`-` is standard output")
    .action(
      withPool<object>(async ({ pool, settings, out }, _options, file) => {
        const keys = settings.tokenKeys ?? (await pool.findSecret(STORED_KEYS));
        if (keys === undefined) throw noKeys();
        if (file === "-") process.stdout.write(`${keys}\n`);
        else await writeSecret(file!, `${keys}\n`);
        out.note(`${keyRing(keys).length} keys written. Whoever has them can make tokens.`);
      }),
    );

const importCommand = () =>
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

const noKeys = (): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    "The store keeps no keys: no token was given out yet, and setting tokenKeys is not set.",
    "There is nothing to export.",
  );
