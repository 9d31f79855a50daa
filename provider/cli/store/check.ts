import { checkStore } from "../../pool";
import { command, guarded } from "../command";

/** Exit code 1 when something is wrong that is not repaired. */
export const checkCommand = () =>
  command("check", "Check that leases, free space and indexes agree, and that the store's time can be trusted.")
    .option("--repair", "write again what follows from pools and leases, and let the store's clock count as it is now")
    .action(
      guarded<{ repair?: boolean }>(async (settings, out, { repair = false }) => {
        const findings = await checkStore(settings.store, settings, repair);
        const rows = findings.map((finding) => ({ ...finding, repaired: repair && finding.repairable }));
        out.list(rows, ["pool", "problem", "repairable", "repaired"]);
        if (findings.length === 0) out.say("The store is sound.");
        if (rows.some(({ repaired }) => !repaired)) process.exitCode = 1;
      }),
    );
