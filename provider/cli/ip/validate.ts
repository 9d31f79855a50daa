import { command, withPool } from "../command";
import { view } from "./reservation";
import { unused } from "./tokens";

export const validateCommand = () =>
  command("validate", "Say what a token is good for, if it is.")
    .argument("<token>")
    .option("--runner <name>", "it must be for this runner: NAME or NETWORK/NAME")
    .action(
      withPool<{ runner?: string }>(async (session, { runner }, token) => {
        session.out.one(view(await unused(session, token!, runner)));
      }),
    );
