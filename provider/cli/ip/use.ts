import { describeLease, useByAddress, useByAddressInput, useByToken, useByTokenInput } from "../../reservations";
import { command, optionsOf, withPool } from "../command";
import { readToken, withAddress, withToken } from "./options";

export const useCommand = () =>
  withToken(
    withAddress(
      command("use", "Mark an address as used by a container, so that it does not expire: by its token, or by itself."),
    ),
    "what `ip reserve` gave",
  )
    .requiredOption("--by <name>", "the container that uses it; it may ask again")
    .option("--vm", "a virtual machine uses it: `gc` looks for no container")
    .action(
      withPool<{ token?: string }>(async ({ context, out }, given) => {
        const options = await readToken(given);
        const lease =
          options.token === undefined
            ? await useByAddress(context, optionsOf(useByAddressInput, options))
            : await useByToken(context, optionsOf(useByTokenInput, options));
        out.one(describeLease(lease));
      }),
    );
