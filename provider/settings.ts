import { homedir, hostname, userInfo } from "node:os";
import { join } from "node:path";
import { z } from "zod";
import { addressBits, familyOf, parseRange } from "./addressing/ip";
import { OverlayError } from "./errors";
import type { Connection, HostSettings } from "./host/connection";
import { explainIssues } from "./invalid-input";
import type { Tenant } from "./ipam/types";
import type { TenantDefaults } from "./resource";
import { tenant as tenantSchema } from "./resources/inputs";
import { readSecretFile } from "./secret-file";

/** Settings of the provider and of the command line: their schema, and how they are read. */

/** At most ten years. */
const seconds = (initial: number) => z.coerce.number().int().min(0).max(315_360_000).default(initial);

function parseTenantDefaults(text: string): TenantDefaults | undefined {
  const entries = text.split(",").map((entry) => {
    const [, type, cidr, bits] = /^\s*(\w+)=([^/\s]+\/\d+)\/(\d{1,3})\s*$/.exec(entry) ?? [];
    const range = cidr === undefined ? undefined : parseRange(cidr);
    const fits =
      range && Number(bits) > Number(cidr!.split("/")[1]) && Number(bits) <= addressBits(familyOf(range.first));
    return fits ? [type!, { range, prefixLength: Number(bits) }] : undefined;
  });
  return entries.every((entry) => entry !== undefined) ? Object.fromEntries(entries) : undefined;
}

function rejectTenantDefaults(context: z.core.$RefinementCtx): never {
  context.addIssue({
    code: "custom",
    message: "must be like clusterIP=10.96.0.0/12/20,loadBalancer=192.168.0.0/16/24",
  });
  return z.NEVER;
}

function parseTenant(text: string): Tenant | undefined {
  const [, org, project] = /^([^/]+)\/([^/]+)$/.exec(text) ?? [];
  const parsed = tenantSchema.safeParse({ org, project });
  return parsed.success ? parsed.data : undefined;
}

function rejectTenant(context: z.core.$RefinementCtx): never {
  context.addIssue({ code: "custom", message: "must be like acme/web: an organization and a project" });
  return z.NEVER;
}

/** Owners begin with their scope. These words are for owners that are not stacks: containers, tenants, the command line. */
export const RESERVED_SCOPES = ["docker", "forgotten", "service", "overlayctl", "tenant", "tenants"];

export const scopeName = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/, "must be 1 to 100 letters, digits, '.', '_' or '-'")
  .refine((word) => !RESERVED_SCOPES.includes(word.toLowerCase()), `must be none of ${RESERVED_SCOPES.join(", ")}`);

const pulumiHome = (): string => process.env.PULUMI_HOME ?? join(homedir(), ".pulumi");

/** The user that the CI system names, else the user that started this process, also through sudo. */
function defaultActor(): string {
  const { GITHUB_ACTOR, GITLAB_USER_LOGIN, SUDO_USER, USER } = process.env;
  const user = GITHUB_ACTOR ?? GITLAB_USER_LOGIN ?? SUDO_USER ?? USER ?? userNameOfProcess();
  return `${user}@${hostname()}`;
}

/** A process in a container may have a user id without a name. */
function userNameOfProcess(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid-${process.getuid?.() ?? "unknown"}`;
  }
}

/** Settings of the provider: stack config `overlay:KEY`, else environment `OVERLAY_KEY`, else the default. */
export const settingsSchema = z.object({
  store: z
    .string()
    .optional()
    // Not a zod default: schema.json would contain a path of the machine that generates it.
    .transform((url) => url ?? `sqlite:${join(pulumiHome(), "overlay", "pool.db")}`)
    .describe(
      "The store of the pool: `sqlite:PATH`, `postgres://…`, `etcd://h1:2379,h2:2379/prefix`, or a service, `https://HOST`. Secret, because it may have a password. Default: a file under Pulumi's home.",
    ),
  storeToken: z
    .string()
    .optional()
    .describe(
      "The access token of a store that is a service. With the scope `preview` it permits previews only, with `deploy` also up, refresh and destroy.",
    ),
  scope: scopeName.optional().describe("Prefix of every owner. Default: the Pulumi organization."),
  actor: z
    .string()
    .optional()
    .transform((name) => name ?? defaultActor())
    .describe("The user that the history names for each change. Default: `USER@HOST`."),
  offerTtl: seconds(3600).describe(
    "Seconds for which a preview's offers hold; 0: previews show no values of new resources.",
  ),
  quarantine: seconds(300).describe(
    "Seconds for which a released value is quarantined before another owner can get it.",
  ),
  tokenKeys: z
    .string()
    .optional()
    .describe(
      "Secrets for tokens, separated by commas: the first signs, all verify. Default: one that the store keeps.",
    ),
  user: z.string().optional().describe("SSH user for connections that name none."),
  privateKey: z.string().optional().describe("SSH private key for connections that have none."),
  privateKeyPath: z.string().optional().describe("File with that key."),
  agentSocketPath: z.string().optional().describe("Socket of an SSH agent."),
  knownHosts: z.string().optional().describe("Files in known_hosts form, separated by ':'."),
  unknownHostKey: z
    .enum(["refuse", "accept"])
    .meta({ id: "UnknownHostKey" })
    .default("refuse")
    .describe("`accept`: accept an unknown host key, and add it to the first file of `knownHosts`."),
  connectTimeout: seconds(15).describe("Seconds for one SSH dial."),
  operationTimeout: seconds(120).describe("Seconds for one operation on a host."),
  parallelHosts: z.coerce.number().int().min(1).default(16).describe("SSH dials at the same time."),
  tenantDefaults: z
    .string()
    .default("clusterIP=10.96.0.0/12/20,loadBalancer=192.168.0.0/16/24")
    .transform((text, context) => parseTenantDefaults(text) ?? rejectTenantDefaults(context))
    .describe(
      "Blocks for tenants without a pool: for each type `TYPE=BASE/PREFIX/BLOCK`, the range that tenants share and the prefix length of each tenant's block, separated by commas.",
    ),
  tenant: z
    .string()
    .optional()
    .transform((text, context) => (text === undefined ? undefined : (parseTenant(text) ?? rejectTenant(context))))
    .describe("Tenant of every resource that names none, `ORG/PROJECT`. A tenant's pool serves that tenant only."),
  unreachableOnDelete: z
    .enum(["fail", "forget"])
    .meta({ id: "UnreachableOnDelete" })
    .default("fail")
    .describe(
      "`forget`: an unreachable host does not block destroy; its addresses stay reserved, because the host may still be using them.",
    ),
});

/** Never shown, and secret in a stack's configuration. */
export const SECRET_SETTINGS = ["store", "storeToken", "privateKey", "tokenKeys"];

export type Settings = z.output<typeof settingsSchema>;

/** `OVERLAY_OFFER_TTL` for offerTtl. */
export const environmentName = (key: string): string =>
  `OVERLAY_${key.replace(/[A-Z]/g, (c) => `_${c}`).toUpperCase()}`;

/** `OVERLAY_STORE_FILE` names a file with the setting `store`; the same for all secret settings. */
function readSettingFile(key: string): string | undefined {
  const variable = `${environmentName(key)}_FILE`;
  const file = SECRET_SETTINGS.includes(key) ? process.env[variable] : undefined;
  if (file === undefined) return undefined;
  return readSecretFile(file, `${variable} names a file that`, "SETTING_INVALID");
}

export function readSettings(config: (key: string) => string | undefined): Settings {
  const given = Object.keys(settingsSchema.shape).flatMap((key) => {
    const value = config(key) ?? process.env[environmentName(key)] ?? readSettingFile(key);
    return value === undefined ? [] : [[key, value]];
  });
  const parsed = settingsSchema.safeParse(Object.fromEntries(given));
  if (parsed.success) return parsed.data;
  const [refusal] = explainIssues(parsed.error.issues, {
    schema: settingsSchema,
    given: Object.fromEntries(given),
    isSecret: ([key]) => SECRET_SETTINGS.includes(key!),
  });
  const key = refusal!.path[0]!;
  throw new OverlayError(
    "SETTING_INVALID",
    `Setting ${refusal!.reason}`,
    `Set overlay:${key} in the stack's config, or ${environmentName(key)} in the environment, to a valid value.`,
  );
}

/** Settings of SSH connections, and the login for connections that have none. */
export function sshSettings(settings: Settings): { hosts: HostSettings; login: Partial<Connection> } {
  const { user, privateKey, privateKeyPath, agentSocketPath, knownHosts, ...rest } = settings;
  const given = Object.entries({ user, privateKey, privateKeyPath, agentSocketPath }).filter(
    ([, value]) => value !== undefined,
  );
  return {
    hosts: { ...rest, ...(knownHosts && { knownHosts: knownHosts.split(":") }) },
    login: Object.fromEntries(given),
  };
}
