import { type DestinationStream, type Logger, pino } from "pino";

/** Texts that give access: access tokens, tokens of reservations, secrets of webhooks, passwords in URLs, and headers that may have one. */
const SECRETS = [
  /\bovl_[0-9a-f]{8}_[\w-]{20,}/g,
  /\bipr1\.[\w-]{8}\.[\w.-]+/g,
  /\bwhsec_[\w-]+/g,
  /(?<=:\/\/[^\s/@:"]*:)[^\s"]+(?=@)/g, // up to the last @: a password may contain / and @
  /(?<=\bBearer\s+)[^\s"\\]+/gi,
];

export const redact = (text: string): string =>
  SECRETS.reduce((line, secret) => line.replace(secret, "[redacted]"), text);

/** JSON lines. Every line passes through `redact`, whatever a future line may contain. */
export function createLog(level: string, write: (line: string) => void): Logger {
  const stream: DestinationStream = { write: (line) => write(redact(line)) };
  const options = {
    level,
    base: null,
    timestamp: () => `,"time":"${new Date().toISOString()}"`,
    // Of fastify's own lines: the URL of a request may contain a token.
    serializers: {
      req: ({ method }: { method: string }) => ({ method }),
      res: ({ statusCode }: { statusCode: number }) => ({ statusCode }),
    },
    formatters: { level: (label: string) => ({ level: label }) },
  };
  return pino(options, stream);
}
