import { z } from "zod";
import { OverlayError } from "../provider/errors";
import { explainIssues } from "../provider/invalid-input";
import { environmentName } from "../provider/settings";
import { parseListen } from "./listen";

const count = (initial: number, max: number) => z.coerce.number().int().min(1).max(max).default(initial);
const file = z.string().min(1).optional();
const address = z
  .string()
  .refine((text) => parseListen(text) !== undefined, "must be HOST:PORT, [IPV6]:PORT or :PORT")
  .transform((text) => parseListen(text)!);

/** Settings of `overlayctl serve`: options, else environment `OVERLAY_KEY`, else the default. */
export const serviceSettingsSchema = z
  .object({
    listen: address.prefault("127.0.0.1:7447").describe("Address and port; `:PORT` is all addresses."),
    grpcListen: address.optional().describe("The same for gRPC. Default: gRPC is not served."),
    tlsCert: file.describe("File with the certificate and its chain (PEM). Read again when it changes."),
    tlsKey: file.describe("File with the key of the certificate (PEM)."),
    clientCa: file.describe("File with the authorities whose client certificates are accepted; others are refused."),
    noAuth: z.stringbool().or(z.boolean()).default(false).describe("Without access tokens, on loopback only."),
    bodyLimit: count(65_536, 2 ** 30).describe("Bytes of a request's body."),
    pageLimit: count(1000, 100_000).describe("Entries of a page."),
    rateLimit: count(1000, 1_000_000).describe("Requests in a second for each access token."),
    requestTimeout: count(30, 3600).describe("Time limit for receiving a request, in seconds."),
    metricsPublic: z.stringbool().or(z.boolean()).default(false).describe("Metrics need no access token."),
    metricsPools: count(1000, 100_000).describe("Pools with metrics of their own; others are counted together."),
    logLevel: z
      .enum(["debug", "info", "warn", "error", "silent"])
      .default("info")
      .describe("Least level of log lines."),
  })
  .refine(({ tlsCert, tlsKey }) => (tlsCert === undefined) === (tlsKey === undefined), {
    message: "must be given together with tlsKey",
    path: ["tlsCert"],
  })
  .refine(({ clientCa, tlsCert }) => clientCa === undefined || tlsCert !== undefined, {
    message: "must be given with tlsCert and tlsKey",
    path: ["clientCa"],
  });

export type ServiceSettings = z.output<typeof serviceSettingsSchema>;

export function readServiceSettings(options: Record<string, unknown>, env: NodeJS.ProcessEnv): ServiceSettings {
  const given = Object.fromEntries(
    Object.keys(serviceSettingsSchema.shape).flatMap((key) => {
      const value = options[key] ?? env[environmentName(key)];
      return value === undefined ? [] : [[key, value]];
    }),
  );
  const parsed = serviceSettingsSchema.safeParse(given);
  if (parsed.success) return parsed.data;
  const [refusal] = explainIssues(parsed.error.issues, { schema: serviceSettingsSchema, given, isSecret: () => false });
  const key = refusal!.path[0]!;
  const option = key.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);
  throw new OverlayError(
    "SETTING_INVALID",
    `Setting ${refusal!.reason}`,
    `Give --${option}, or ${environmentName(key)} in the environment, a valid value.`,
  );
}
