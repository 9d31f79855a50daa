import { openPool } from "../../pool";
import { command, guarded } from "../command";

/** Exit code 1 when something is wrong that is not repaired. */
export const checkCommand = () =>
  command("check", "Check that leases, free space and indexes agree.")
    .option("--repair", "write again what follows from pools and leases")
    .action(
      guarded<{ repair?: boolean }>(async (settings, out, { repair = false }) => {
        const pool = await openPool(settings.store, { ...settings, looking: !repair });
        const findings = await pool.fsck({ repair }).finally(() => pool.end());
        const rows = findings.map((finding) => ({ ...finding, repaired: repair && finding.repairable }));
        out.list(rows, ["pool", "problem", "repairable", "repaired"]);
        if (findings.length === 0) out.say("The store is sound.");
        if (rows.some(({ repaired }) => !repaired)) process.exitCode = 1;
      }),
    );
