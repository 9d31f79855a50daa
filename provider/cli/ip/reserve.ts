import { address, command, plainName, seconds, withPool } from "../command";
import { reserve, view } from "./reservation";
import { runnerNamed } from "./runner";
import { tokenFor } from "./tokens";

interface Options {
  network: string;
  runner: string;
  ip?: bigint;
  ttl?: number;
  vm?: boolean;
  by?: string;
}

const TTL = 300;
/** A virtual machine takes longer to boot than a container. */
const VM_TTL = 1800;

export const reserveCommand = () =>
  command("reserve", "Reserve an address on a runner, and get a token to use it with.")
    .requiredOption("--network <name>", "the network")
    .requiredOption("--runner <name>", "the runner")
    .option("--ip <address>", "exactly this one", address)
    .option("--ttl <seconds>", `how long it may stay unused; default ${TTL}, ${VM_TTL} with --vm`, seconds)
    .option("--vm", "for a virtual machine")
    .option("--by <name>", "who it is for: asking again gives the same address", plainName)
    .action(
      withPool<Options>(async (session, { network, runner: name, ip, ttl, vm, by }) => {
        const runner = await runnerNamed(session.pool, network, name);
        const lease = await reserve(session.pool, runner, {
          ttl: ttl ?? (vm ? VM_TTL : TTL),
          ...(vm && { vm }),
          ...(ip !== undefined && { ip }),
          ...(by !== undefined && { by }),
        });
        for (const warning of lease.warnings ?? []) session.out.note(`warning: ${warning}`);
        const [main, second] = runner.layouts.map(({ gateway }) => gateway);
        const token = await tokenFor(session, lease);
        session.out.one({ ...view(lease), gateway: main, gateway6: second, token });
      }),
    );
