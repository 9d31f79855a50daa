import { DEFAULT_TTL, describeLease, reserve, reserveInput } from "../../reservations";
import { command, optionsOf, withPool } from "../command";
import { withAddress } from "./options";

export const reserveCommand = () =>
  withAddress(
    command("reserve", "Reserve an address on a runner or in a pool, and get a token to use it with."),
    "exactly this one",
  )
    .option(
      "--ttl <seconds>",
      `how long it may stay unused; default ${DEFAULT_TTL.container}, ${DEFAULT_TTL.vm} with --vm`,
    )
    .option("--vm", "for a virtual machine")
    .option("--by <name>", "the container it is for: asking again gives the same reservation")
    .action(
      withPool(async ({ context, out }, options) => {
        const { lease, token, gateways } = await reserve(context, optionsOf(reserveInput, options));
        for (const warning of lease.warnings ?? []) out.note(`warning: ${warning}`);
        const [gateway, gateway6] = gateways;
        out.one({ ...describeLease(lease), gateway, gateway6, token });
      }),
    );
