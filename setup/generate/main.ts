import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { errorsPage } from "./errors";
import { packageSchema } from "./schema";
import { sdkSource, settingNamesSource } from "./sdk";

/** `npm run generate` writes what is made from the zod schemas and the table of error codes; `--check` fails when it is stale. */
export const generated = (): Record<string, string> => ({
  "schema.json": `${JSON.stringify(packageSchema(), withoutLiterals, 2)}\n`,
  "sdk/resources.ts": sdkSource(),
  "sdk/setting-names.ts": settingNamesSource(),
  "docs/errors.md": errorsPage(),
});

/** Pulumi's schema has no literal types. */
const withoutLiterals = (key: string, value: unknown): unknown => (key === "const" ? undefined : value);

export const staleFiles = (): string[] =>
  Object.entries(generated()).flatMap(([file, text]) => {
    const path = join(__dirname, "../..", file);
    return existsSync(path) && readFileSync(path, "utf8") === text ? [] : [file];
  });

if (require.main === module) {
  const stale = staleFiles();
  if (process.argv.includes("--check")) {
    if (stale.length > 0) console.error(`stale: ${stale.join(", ")}. Run \`npm run generate\`.`);
    process.exitCode = stale.length > 0 ? 1 : 0;
  } else {
    const texts = generated();
    for (const file of stale) writeFileSync(join(__dirname, "../..", file), texts[file]!);
    console.log(stale.length > 0 ? `wrote ${stale.join(", ")}` : "nothing to write");
  }
}
