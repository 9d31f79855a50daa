import { chaosPool } from "./pool";

/** `npm run chaos -- NAME`: real processes under kill -9 and broken servers; exits with 1 if a check fails. */
const RUNS: Record<string, (args: string[]) => Promise<boolean>> = {
  pool: chaosPool,
};

async function main([name = "", ...args]: string[]): Promise<number> {
  const run = RUNS[name];
  if (run) return (await run(args)) ? 0 : 1;
  console.error(`npm run chaos -- ${Object.keys(RUNS).join(" | ")}`);
  return 2;
}

main(process.argv.slice(2)).then(
  (code) => {
    process.exitCode = code;
  },
  (error: unknown) => {
    console.error(error);
    process.exitCode = 1;
  },
);
