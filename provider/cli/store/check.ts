import { command, withPool } from "../command";

/** Exit code 1 when something is wrong that is not repaired. */
export const checkCommand = () =>
  command("check", "Check that leases, free space and indexes agree.")
    .option("--repair", "write again what follows from pools and leases")
    .action(
      withPool<{ repair?: boolean }>(async ({ pool, out }, { repair = false }) => {
        const findings = await pool.fsck({ repair });
        const rows = findings.map((finding) => ({ ...finding, repaired: repair && finding.repairable }));
        out.list(rows, ["pool", "problem", "repairable", "repaired"]);
        if (findings.length === 0) out.say("The store is sound.");
        if (rows.some(({ repaired }) => !repaired)) process.exitCode = 1;
      }),
    );
