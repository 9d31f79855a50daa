import { addressInput, describeLease, showAddress } from "../../reservations";
import { command, optionsOf, withPool } from "../command";
import { withPlace } from "./options";

export const showCommand = () =>
  withPlace(command("show", "Show who holds an address, since when and until when, and who had it before."))
    .argument("<address>")
    .action(
      withPool<object>(async ({ pool, out }, options, address) => {
        const input = optionsOf(addressInput, { ...options, ip: address }, { ip: "ADDRESS" });
        const { holders, before } = await showAddress(pool, input);
        for (const lease of holders) out.one({ ...describeLease(lease), since: describeLease(lease).createdAt });
        if (holders.length === 0) out.one({ ip: address, state: "free" });
        if (before.length > 0) out.say("\nbefore");
        out.list(
          before.map((holding) => ({ before: address, ...holding })),
          ["since", "until", "end", "usedBy", "owner", "pool"],
        );
      }),
    );
