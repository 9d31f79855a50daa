import { findLeases, searchInput } from "../../reservations";
import { command, optionsOf, withPool } from "../command";
import { listLeases, withPlace } from "./options";

export const listCommand = () =>
  withPlace(command("list", "List the addresses that are held, in all pools or those that are asked for."))
    .option("--address <address>", "only this address")
    .option("--owner <text>", "only of owners whose name has this text")
    .option("--by <name>", "only of this container")
    .option("--label <key=value...>", "only with these labels")
    .option("--tenant <org/project>", "only of this tenant")
    .option("--state <state>", "reserved, used, offered or resting; default: reserved and used")
    .action(
      withPool<{ address?: string; label?: string[] }>(async ({ pool, out }, { address, label, ...options }) => {
        const search = optionsOf(
          searchInput,
          { ...options, ip: address, labels: label },
          { ip: "address", labels: "label" },
        );
        const found = await findLeases(pool, search);
        listLeases(out, found);
        if (found.length === 0) out.note("No address is held there.");
      }),
    );
