import { heartbeatRunner, runnerInput } from "../provider/reservations";
import { command, parseOptions, withPool } from "./command";

/** `overlayctl heartbeat`: renews `lastSeen` of a runner. */

export const heartbeatCommand = () =>
  command("heartbeat", "Record that a runner is alive, so that its id is not reclaimed as inactive.")
    .option("--network <name>", "the network; needed if several have a runner of that name")
    .requiredOption("--runner <name>", "the runner: NAME or NETWORK/NAME")
    .action(
      withPool(async ({ context, out }, options) => {
        out.one(await heartbeatRunner(context, parseOptions(runnerInput, options)));
      }),
    );
