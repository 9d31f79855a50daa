import { describeLease, validateToken } from "../../reservations";
import { command, withPool } from "../command";

export const validateCommand = () =>
  command("validate", "Say what a token is good for, if it is.")
    .argument("<token>")
    .option("--runner <name>", "it must be for this runner: NAME or NETWORK/NAME")
    .action(
      withPool<{ runner?: string }>(async ({ context, out }, { runner }, token) => {
        out.one(describeLease(await validateToken(context, token!, runner)));
      }),
    );
