import { fromLine } from "../../addressing/line";
import { OverlayError } from "../../errors";
import { address, command, withPool } from "../command";
import { ipOf, isOfStack, view } from "./reservation";
import { runnerNamed } from "./runner";

interface Options {
  network: string;
  runner: string;
  ip: bigint;
  force?: boolean;
}

export const freeCommand = () =>
  command("free", "Take an address back, whoever has it.")
    .requiredOption("--network <name>", "the network")
    .requiredOption("--runner <name>", "the runner")
    .requiredOption("--ip <address>", "the address", address)
    .option("--force", "also from a Pulumi stack, which asks for it again at its next run")
    .action(
      withPool<Options>(async ({ pool, out }, { network, runner: name, ip, force }) => {
        const runner = await runnerNamed(pool, network, name);
        const lease = await pool.find(runner.pool, { value: ip });
        if (!lease) {
          throw new OverlayError(
            "INPUT_INVALID",
            `Nobody holds ${fromLine(ip)} on ${network}/${name}.`,
            "`overlayctl ip list` shows what is held.",
          );
        }
        if (isOfStack(lease) && !force) {
          throw new OverlayError(
            "IP_IN_USE",
            `${ipOf(lease)} belongs to ${lease.owner}.`,
            "Remove it from its program, or say --force.",
          );
        }
        await pool.release(lease.pool, lease.leaseId);
        out.one(view(lease));
      }),
    );
