import { OverlayError } from "../../errors";
import { describeLease, validateToken } from "../../reservations";
import { command, withPool } from "../command";
import { secretOf } from "../secret-file";
import { withTokenFile } from "./options";

export const validateCommand = () =>
  withTokenFile(command("validate", "Say what a token is good for, if it is."))
    .argument("[token]", "`-` is standard input")
    .option("--runner <name>", "it must be for this runner: NAME or NETWORK/NAME")
    .action(
      withPool<{ runner?: string; tokenFile?: string }>(async ({ context, out }, { runner, tokenFile }, word) => {
        const token = await secretOf("token", word, tokenFile);
        if (token === undefined)
          throw new OverlayError(
            "INPUT_INVALID",
            "No token given.",
            "Pass --token-file FILE, or `-` to read standard input.",
          );
        out.one(describeLease(await validateToken(context, token, runner)));
      }),
    );
