import { expect } from "vitest";
import type { Code } from "../../provider/errors";

const wordsOf = (text: string): string => ` ${text.split(/[\s,;()]+|[.:](?=\s|$)/).join(" ")} `;

/** An error with this code, whose text has each of these names as whole words. */
export const refusal = (code: Code, ...names: string[]) => ({
  code,
  message: expect.toSatisfy(
    (message = "") => names.every((name) => wordsOf(message).includes(wordsOf(name))),
    `names ${names.join(", ")}`,
  ),
});
