import { openStore } from "../../pool";
import { snapshot } from "../../pool/transfer";
import { command, guarded } from "../command";
import { jsonLine } from "../output";

/** Pools, leases, history, version; the rest follows from them. */
const TRUTH = /^[plhv](\/|$)/;
const SECRET = /^k\//;

export const dumpCommand = () =>
  command("dump", "Print the store as of one moment, a JSON object a line; never a secret.")
    .option("--all", "also what follows from pools and leases")
    .action(
      guarded<{ all?: boolean }>(async (settings, _out, { all = false }) => {
        const store = await openStore(settings.store, settings);
        const rows = await snapshot(store).finally(() => store.close());
        for (const [key, value] of rows) {
          if (SECRET.test(key)) write({ key, secret: true });
          else if (all || TRUTH.test(key)) write({ key, value: parsed(value) });
        }
      }),
    );

const write = (row: object): void => void process.stdout.write(`${jsonLine(row)}\n`);

/** Most rows are JSON; the others are a word. */
const parsed = (value: string): unknown => (value.startsWith("{") ? JSON.parse(value) : value);
