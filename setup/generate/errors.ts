import { type Category, type Code, ERROR_CODES, ERROR_GROUPS } from "../../provider/error-codes";
import { statusOf } from "../../service/problem";

/** docs/errors.md, from the table of error codes. */
export const errorsPage = (): string => {
  const groups = Object.entries(ERROR_GROUPS).map(([title, codes]) => {
    const sections = (Object.keys(codes) as Code[]).sort().map(section);
    return [`## ${title}`, ...sections].join("\n\n");
  });
  return `${[INTRODUCTION, ...groups, CLIENT].join("\n\n")}\n`;
};

const INTRODUCTION = `# Errors

\`CODE: what is wrong, with names and numbers. What to do.\` An error has this form in previews, in ups, on the command line and in answers of the service. Codes are
stable. \`overlayctl explain CODE\` prints what is on this page; \`overlayctl explain --json\` prints all of it for programs.

This page is generated from \`provider/error-codes.ts\`. Each code has a category, and the HTTP status that the [service](service.md#errors) answers with.`;

const CLIENT = `## Codes of the client

[Clients of the service](service.md#client) have three more, for failures without a usable answer: \`SERVICE_UNREACHABLE\` (no connection, or it broke), \`SERVICE_TIMEOUT\` (no answer
in time) and \`ANSWER_INVALID\` (an answer that is not as documented).`;

const CATEGORIES: Record<Category, string> = {
  invalid: "invalid input",
  unauthenticated: "not authenticated",
  forbidden: "not permitted",
  notFound: "not found",
  conflict: "conflict",
  exhausted: "nothing is left",
  gone: "expired",
  rateLimited: "too many requests",
  hostFailed: "a host",
  unavailable: "the store or the service is not available",
  internal: "settings, store or a fault",
};

function section(name: Code): string {
  const { category, meaning, remedy } = ERROR_CODES[name];
  return `### ${name}\n\n${meaning}\n\n**What to do.** ${remedy}\n\n*${CATEGORIES[category]} · ${statusOf(name)}*`;
}
