import {
  accessTokenInput,
  createAccessToken,
  describeAccessToken,
  listAccessTokens,
  revokeAccessToken,
} from "../provider/access/access-tokens";
import { command, parseOptions, wholeNumber, withNewPool, withPool } from "./command";

/** `overlayctl access`: tokens for callers of `overlayctl serve`. */

const COLUMNS = [
  "id",
  "name",
  "scopes",
  "tenant",
  "network",
  "pool",
  "createdAt",
  "createdBy",
  "expiresAt",
  "revokedAt",
] as const;

export const accessCreateCommand = () =>
  command("create", "Make an access token, and print it. It is not stored, and cannot be shown again.")
    .argument("<name>", "the history names it for each change that is made with the token")
    .requiredOption("--scope <scope...>", "read, reserve, admin (includes all others), preview or deploy")
    .option("--tenant <org/project>", "only for this tenant")
    .option("--network <name>", "only for this network and its runners")
    .option("--pool <name>", "only for this pool: an IPPool, or runner/NETWORK/RUNNER")
    .option("--expires-in <seconds>", "default: valid until it is revoked", wholeNumber)
    .action(
      withNewPool<{ scope: string[] }>(async ({ pool, settings, out }, { scope, ...options }, name) => {
        const given = { ...options, name, scopes: scope };
        const flags = { name: "NAME", scopes: "scope", expiresIn: "expires-in" };
        const input = parseOptions(accessTokenInput, given, flags);
        const { token, text } = await createAccessToken({ pool, createdBy: settings.actor }, input);
        out.one({ ...describeAccessToken(token), token: text });
      }),
    );

export const accessListCommand = () =>
  command("list", "List access tokens.")
    .option("--all", "also those that were revoked or have expired")
    .action(
      withPool<{ all?: boolean }>(async ({ pool, out }, options) => {
        const tokens = await listAccessTokens(pool, options);
        out.list(tokens.map(describeAccessToken), [...COLUMNS]);
        if (tokens.length === 0) out.note("There is no access token.");
      }),
    );

export const accessRevokeCommand = () =>
  command("revoke", "Revoke an access token. It is refused from then on, after a second at the latest.")
    .argument("<id|name>")
    .action(
      withPool<object>(async ({ pool, out }, _options, word) => {
        out.one(describeAccessToken(await revokeAccessToken(pool, word!)));
      }),
    );
