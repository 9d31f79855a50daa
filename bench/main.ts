import { benchHub } from "./hub";
import { benchLoss } from "./loss";
import { benchPool } from "./pool";
import { benchScale } from "./scale";
import { benchService } from "./service";
import { benchTunnel } from "./tunnel";
import { benchUp } from "./up";

/** `npm run bench -- NAME`: ratios to another program or to a lower bound, measured in one run. */
const BENCHES: Record<string, (args: string[]) => Promise<void>> = {
  up: benchUp,
  pool: benchPool,
  scale: benchScale,
  service: benchService,
  hub: benchHub,
  loss: benchLoss,
  tunnel: benchTunnel,
};

const [name = "", ...args] = process.argv.slice(2);
const bench = BENCHES[name];
if (!bench) {
  console.error(`npm run bench -- ${Object.keys(BENCHES).join(" | ")}`);
  process.exitCode = 2;
} else {
  bench(args).catch((error: unknown) => {
    console.error(error);
    process.exitCode = 1;
  });
}
