import { describeLease, holdAddress, holdInput } from "../../reservations";
import { command, optionsOf, refuse, withPool } from "../command";
import { withAddress } from "./options";
import { supervise } from "./supervise";

/**
 * The address is held by a short lease that is renewed as long as the command runs. All processes of the command have ended before
 * the lease is released; when the lease is lost they are ended, since the address may belong to another owner by then.
 */
export const runCommand = () =>
  withAddress(
    command("run", "Hold an address for the life of a command, which finds it in OVERLAY_IP."),
    "exactly this one",
  )
    .option("--ttl <seconds>", "how long it stays held if this process is killed; default 30")
    .argument("<command...>", "the command and its arguments, after --")
    .passThroughOptions()
    .action(
      withPool(async ({ context }, options, words) => {
        const hold = await holdAddress(context, optionsOf(holdInput, options));
        const { ip, ip6, pool, network, runner } = describeLease(hold.lease);
        const [gateway, gateway6] = hold.gateways;
        const env = {
          OVERLAY_IP: ip,
          OVERLAY_IP6: ip6,
          OVERLAY_POOL: pool,
          OVERLAY_NETWORK: network,
          OVERLAY_RUNNER: runner,
          OVERLAY_GATEWAY: gateway,
          OVERLAY_GATEWAY6: gateway6,
        };
        try {
          const command = supervise(words as unknown as string[], env);
          void hold.lost.then((error) => {
            command.end();
            refuse(error, false);
          });
          process.exitCode = await command.ended;
        } finally {
          await hold.release();
        }
      }),
    );
