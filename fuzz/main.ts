import { fuzzHosts } from "./hosts";
import { fuzzPrograms } from "./programs";

/** `npm run fuzz -- NAME`: random work from a seed; exits with 1 after a disagreement. */
const RUNS: Record<string, (args: string[]) => Promise<boolean>> = {
  hosts: fuzzHosts,
  programs: fuzzPrograms,
};

async function main([name = "", ...args]: string[]): Promise<number> {
  const run = RUNS[name];
  if (run) return (await run(args)) ? 0 : 1;
  console.error(
    `npm run fuzz -- ${Object.keys(RUNS).join(" | ")} [--seed N] [--minutes M] [--rounds R] [--programs P] [--store sqlite|postgres|etcd] [--hosts] [--workers W]`,
  );
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
