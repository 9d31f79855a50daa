import { addressInput, describeEvent, historyOfAddress, historyOfPool } from "../reservations";
import { command, optionsOf, withPool } from "./command";

const isAddress = (text: string): boolean => /^\d+(\.\d+){3}$/.test(text) || text.includes(":");

export const historyCommand = () =>
  command("history", "Show what happened in a pool or to an address, oldest first: when, what, by which user.")
    .argument("[pool|address]", "a pool as `pool list` shows it, or an address; default: all pools")
    .action(
      withPool(async ({ pool, out }, _, subject) => {
        const events =
          subject !== undefined && isAddress(subject)
            ? await historyOfAddress(pool, optionsOf(addressInput, { ip: subject }, { ip: "ADDRESS" }))
            : await historyOfPool(pool, subject);
        out.list(events.map(describeEvent), ["at", "what", "value", "pool", "usedBy", "by", "owner"]);
        if (events.length === 0) out.note("Nothing is known of it.");
      }),
    );
