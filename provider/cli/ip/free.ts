import { describeLease, free, freeInput } from "../../reservations";
import { command, optionsOf, withPool } from "../command";
import { withAddress } from "./options";

export const freeCommand = () =>
  withAddress(command("free", "Take an address back from its holder."), "the address; its pool follows from it")
    .option("--force", "also from a Pulumi stack, which asks for it again at its next run")
    .action(
      withPool(async ({ context, out }, options) => {
        out.one(describeLease(await free(context, optionsOf(freeInput, options))));
      }),
    );
