import { Command } from "commander";
import { CODES, type Code, ERROR_CODES } from "../provider/error-codes";
import { OverlayError } from "../provider/errors";
import { nearestName } from "../provider/nearest-name";
import { printError } from "./command";
import { Output } from "./output";

/** `overlayctl explain CODE`: what an error code means. It needs no store. */
export const explainCommand = (): Command =>
  new Command("explain")
    .description("Say what an error code means, and what to do about it; without a code, list all.")
    .argument("[code]", "such as DEVICE_FOREIGN")
    .option("--json", "print one JSON object per line")
    .action((word: string | undefined, { json = false }: { json?: boolean }) => {
      const out = new Output(json);
      const name = word?.toUpperCase();
      if (name === undefined) out.list(CODES.map(describe), ["code", "meaning"]);
      else if (isCode(name)) out.one(describe(name));
      else printError(unknownCodeError(word!), json);
    });

const isCode = (name: string): name is Code => Object.hasOwn(ERROR_CODES, name);

const describe = (code: Code) => ({ code, ...ERROR_CODES[code] });

function unknownCodeError(word: string): OverlayError {
  const near = nearestName(word.toUpperCase(), CODES);
  const fix = "`overlayctl explain` lists all codes.";
  return new OverlayError(
    "INPUT_INVALID",
    `There is no error code '${word}'.`,
    near ? `Did you mean ${near}? ${fix}` : fix,
  );
}
