import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { Lab } from "../../lab/lab";

/** `npm run fuzz -- hosts`: random changes by hand and faults on lab hosts; false if anything was found. Round i has the seed N + i. */
export async function fuzzHosts(args: string[]): Promise<boolean> {
  const { values } = parseArgs({
    args,
    options: {
      seed: { type: "string", default: "1" },
      rounds: { type: "string", default: "200" },
      minutes: { type: "string", default: "60" },
    },
  });
  const lab = await Lab.up({ runners: 2 });
  try {
    const options = {
      lab: lab.name,
      seed: Number(values.seed),
      rounds: Number(values.rounds),
      until: Date.now() + Number(values.minutes) * 60_000,
    };
    const side = ["--import", pathToFileURL(require.resolve("tsx")).href, join(__dirname, "side.ts")];
    const { code } = await lab.controller(process.execPath, [...side, JSON.stringify(options)], { stdio: "inherit" });
    return code === 0;
  } finally {
    await lab.down();
  }
}
