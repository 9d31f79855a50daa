import { z } from "zod";
import {
  formatIp,
  formatNumberRange,
  formatRange,
  mergeRanges,
  parseNumberRange,
  parseRange,
  tryParseIp,
} from "../addressing/ip";
import { parseLayout } from "../addressing/layout";
import { OverlayError } from "../errors";

/** Inputs that several resources share. Text that can become part of a shell command is restricted by a pattern here. */

const layoutText = z.string();

/** Normalized, so that equivalent texts are no change. Errors are those of `parseLayout`. */
export const layouts = z
  .union(
    [layoutText, z.tuple([layoutText, layoutText])],
    "must be BASE/PREFIX/NODE_BITS/SUBNET_BITS, or a pair of such",
  )
  .superRefine((given, context) => {
    for (const [i, text] of [given].flat().entries()) {
      try {
        parseLayout(text);
      } catch (error) {
        if (!(error instanceof OverlayError)) throw error;
        context.addIssue({ code: "custom", message: error.message, path: typeof given === "string" ? [] : [i] });
      }
    }
  })
  .transform((given): string | [string, string] =>
    typeof given === "string" ? parseLayout(given).text : [parseLayout(given[0]).text, parseLayout(given[1]).text],
  );

/** One range as `BASE/PREFIX`, without host bits. */
export const cidrBlock = z
  .string()
  .refine((text) => text.includes("/") && parseRange(text) !== undefined, "must be a CIDR without host bits");

/** A layout of a network, or the CIDR of a part of it. */
export const layoutOrCidr = z
  .string()
  .refine(
    (text) => isLayout(text) || cidrBlock.safeParse(text).success,
    "must be a layout or a CIDR without host bits",
  );

export function isLayout(text: string): boolean {
  try {
    parseLayout(text);
    return true;
  } catch (error) {
    if (error instanceof OverlayError) return false;
    throw error;
  }
}

export const ipAddress = z
  .string()
  .refine((text) => tryParseIp(text) !== undefined, { message: "must be an IP address", abort: true })
  .transform((text) => formatIp(tryParseIp(text)!));

/** Patterns are a part of the OpenAPI description, which has no flags and, for many programs, no `\p{…}`. */
const NAME = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?";

export const resourceName = z
  .string()
  .regex(
    new RegExp(`^${NAME}$`),
    "must be 1 to 63 letters, digits, '.', '_' or '-', with a letter or digit at both ends",
  );

/** `NAME` or `NAME/NAME`. */
export const ONE_OR_TWO_NAMES = new RegExp(`^${NAME}(?:/${NAME})?$`);

/** Name of a pool. Names of blocks of tenants have slashes: `tenant/acme/web/clusterIP`. */
export const poolPath = z
  .string()
  .regex(/^[A-Za-z0-9]([A-Za-z0-9._/-]{0,250}[A-Za-z0-9])?$/, "must be letters, digits, '.', '_', '-' or '/'");

/** A host as `hostId` formats it: `HOST`, `HOST:PORT`, or either with ` by ` and the jump host. */
export const hostIdText = z.string().regex(/^[A-Za-z0-9:.%_-]{1,280}( by [A-Za-z0-9:.%_-]{1,280})?$/);

/** Each range of a request is compared with those that are held. */
export const MOST_RANGES = 256;

/** In their shortest form, so that equivalent texts are no change. */
export const ranges = z
  .array(
    z.string().refine((text) => parseRange(text) !== undefined, {
      message: "must be a CIDR without host bits, an address, or FIRST-LAST in one family",
      abort: true,
    }),
  )
  .min(1)
  .max(MOST_RANGES)
  .transform((texts) => mergeRanges(texts.map((text) => parseRange(text)!)).map(formatRange));

/** A range of addresses or of ports, depending on the type of the pool. */
export const rangeOrPorts = z.string().refine((text) => (parseRange(text) ?? parseNumberRange(text)) !== undefined, {
  message: "must be a CIDR without host bits, an address, FIRST-LAST in one family, or ports",
  abort: true,
});

export const rangesOrPorts = z
  .array(rangeOrPorts)
  .min(1)
  .max(MOST_RANGES)
  .transform((texts) => [
    ...mergeRanges(texts.flatMap((text) => parseRange(text) ?? [])).map(formatRange),
    ...mergeRanges(texts.flatMap((text) => parseNumberRange(text) ?? [])).map(formatNumberRange),
  ]);

export const ports = z
  .string()
  .refine((text) => (parseNumberRange(text)?.last ?? 0n) <= 65535n && (parseNumberRange(text)?.first ?? 0n) >= 1n, {
    message: "must be FIRST-LAST between 1 and 65535",
    abort: true,
  })
  .transform((text) => formatNumberRange(parseNumberRange(text)!));

export const tenant = z
  .strictObject({
    org: resourceName.describe("Organization."),
    project: resourceName.describe("Project in it."),
  })
  .meta({ id: "Tenant" });

/** A tenant as a user writes it: `ORGANIZATION/PROJECT`. */
export const tenantText = z
  .string()
  .regex(new RegExp(`^${NAME}/${NAME}$`), "must be ORGANIZATION/PROJECT")
  .transform((text) => ({ org: text.split("/")[0]!, project: text.split("/")[1]! }));

/** As `\p{Cc}`. */
const CONTROLS = "\\u0000-\\u001f\\u007f-\\u009f";
/** One character of free text. */
export const PRINTABLE = `[^${CONTROLS}]`;
const NOT_BLANK = `[^\\s\\ufeff${CONTROLS}]`;

/** Names of containers and other users, which become parts of keys. */
export const plainName = z
  .string()
  .regex(new RegExp(`^${NOT_BLANK}{1,200}$`, "u"), "must be 1 to 200 characters without blanks");

/** The kernel's limit for the name of a device. */
const DEVICE_NAME_BYTES = 15;

const deviceNameUpTo = (bytes: number) =>
  z
    .string()
    .regex(
      new RegExp(`^[a-zA-Z][a-zA-Z0-9_-]{0,${bytes - 1}}$`),
      `must be a letter followed by at most ${bytes - 1} letters, digits, '_' or '-'`,
    );

export const deviceName = deviceNameUpTo(DEVICE_NAME_BYTES);

/** Room for the runner's id in base 36: ids have up to 16 bits. */
export const devicePrefix = deviceNameUpTo(DEVICE_NAME_BYTES - 4);

/** Free text: it is printed on terminals, but is not part of any command. */
export const printable = z.string().regex(new RegExp(`^${PRINTABLE}*$`, "u"), "must have no control characters");

export const labels = z
  .record(printable, printable)
  .optional()
  .describe("Free text for people and tools; kept with the lease.");

const credentials = {
  host: z
    .string()
    .regex(/^[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}(%[A-Za-z0-9._-]{1,15})?$/, "must be a host name or an IP address")
    .describe("Name or address at which SSH reaches the host."),
  port: z.number().int().min(1).max(65535).optional().describe("Port of its SSH server. Default 22."),
  user: z.string().min(1).optional().describe("User to log in as. Default root."),
  password: z.string().optional().describe("Password, where keys cannot be used."),
  privateKey: z.string().optional().describe("Private key, as text."),
  privateKeyPassword: z.string().optional().describe("Passphrase of the private key."),
  privateKeyPath: z.string().optional().describe("File with the private key on the machine that runs Pulumi."),
  agentSocketPath: z.string().optional().describe("Socket of an SSH agent. Default: SSH_AUTH_SOCK."),
  hostKey: z
    .string()
    .optional()
    .describe("The server's public key, `ssh-ed25519 AAAA…`. Default: known_hosts decides."),
  dialErrorLimit: z
    .number()
    .int()
    .min(0)
    .optional()
    .describe(
      "Failed dials before giving up; 0: no limit but operationTimeout. Default 10, but a closed port is given up after at most 10 s and an unknown name at once. Set it for a host that may still be booting.",
    ),
  perDialTimeout: z.number().int().min(0).optional().describe("Seconds for one dial. Default 15."),
};

/** The shape of `@pulumi/command`'s connection, plus `privateKeyPath` and `sudo`: one object serves both packages. */
export const connection = z
  .strictObject({
    ...credentials,
    proxy: z
      .strictObject(credentials)
      .meta({ id: "Proxy" })
      .optional()
      .describe("Jump host through which the host is reached."),
    sudo: z.boolean().optional().describe("Become root with `sudo -n`. Default: true for a user other than root."),
  })
  .meta({ id: "Connection" });

/** Whether two values of an input, each a text or a list of texts, are the same. */
export const hasSameTexts = (some: string | string[], others: string | string[]): boolean =>
  JSON.stringify(some) === JSON.stringify(others);
