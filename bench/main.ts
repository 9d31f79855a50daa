import { benchUp } from "./up";

/** `npm run bench -- NAME`: figures as ratios against a peer or a physical floor, measured in one run. */
const BENCHES: Record<string, () => Promise<void>> = { up: benchUp };

const [name = ""] = process.argv.slice(2);
const bench = BENCHES[name];
if (!bench) {
  console.error(`npm run bench -- ${Object.keys(BENCHES).join(" | ")}`);
  process.exitCode = 2;
} else {
  bench().catch((error: unknown) => {
    console.error(error);
    process.exitCode = 1;
  });
}
