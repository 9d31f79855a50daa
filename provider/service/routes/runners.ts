import { z } from "zod";
import {
  availableAddresses,
  describeRunnerConfig,
  heartbeatRunner,
  reportInput,
  reportRunner,
  runnerInput,
} from "../../reservations";
import { answers, count, leaseAnswer, time } from "../answers";
import type { RouteGroup } from "../app";

const configFields = {
  networkName: z.string(),
  runnerName: z.string(),
  runnerId: z.number().int(),
  subnet: z.string(),
  gateway: z.string(),
  hubIp: z.string().describe("The hub in this subnet."),
  firstIp: z.string(),
  lastIp: z.string(),
  usableIps: count.describe("Without the range from which Docker picks by itself."),
  vni: z.number().int(),
  vxlanPort: z.number().int(),
  mtu: z
    .union([z.number().int(), z.literal("auto")])
    .describe("`auto`: that of the network below, less 50 over IPv4 and 70 over IPv6."),
  masquerade: z.boolean(),
  hub: z.string().optional().describe("The host of the hub, as SSH reaches it."),
  hubUnderlayIp: z.string().optional().describe("Where tunnels end; default the address of `hub`."),
  hubDevice: z.string(),
  runnerDevice: z.string(),
  bridge: z.string(),
  bridgeMac: z.string(),
  runnerMac: z.string(),
  dockerNetwork: z.string(),
  dockerRange: z.string().optional(),
  dockerRange6: z.string().optional(),
  subnets: z.array(z.string()),
  subnet6: z.string().optional(),
  gateway6: z.string().optional(),
  firstIp6: z.string().optional(),
  lastIp6: z.string().optional(),
  routes: z.array(z.object({ to: z.string(), via: z.string() })),
  lastSeen: time,
};

const configAnswer = z.object(configFields).meta({ id: "RunnerConfig" });

const infoAnswer = z
  .object({ ...configFields, capacity: count, held: count, available: count })
  .meta({ id: "RunnerInfo" });

const heartbeatFields = {
  network: z.string(),
  runner: z.string(),
  runnerId: z.number().int(),
  lastSeen: time,
};

const reportAnswer = z
  .object({
    ...heartbeatFields,
    used: z.array(leaseAnswer).describe("Used since this report."),
    unchanged: z.number().int().describe("How many were known."),
    unmanaged: z
      .array(z.object({ name: z.string(), ip: z.string() }))
      .describe("In the range from which Docker picks by itself: they have no lease."),
    gone: z.array(leaseAnswer).describe("In use by what is not in a complete report."),
    released: z.array(leaseAnswer),
    conflicts: z
      .array(
        z.object({
          name: z.string(),
          ip: z.string(),
          code: z.string(),
          reason: z.string(),
          holder: z.string().optional().describe("Who has the address according to the store."),
        }),
      )
      .describe("Contradictions between report and store, which stays as it is."),
  })
  .meta({ id: "RunnerReport" });

const runnerParams = z.object({
  runner: runnerInput.shape.runner.describe("NAME if only one network has it, or NETWORK%2FNAME."),
});
const runnerQuery = z.strictObject({ network: runnerInput.shape.network.describe("The network of the runner.") });

/** A report lists up to ten thousand containers. Bytes. */
const REPORT_LIMIT = 2 ** 21;

/** What a runner asks and tells. */
export const runnerRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/ip/info/:runner",
    config: { scope: "read" },
    schema: {
      operationId: "showRunnerInfo",
      summary: "The subnet of a runner, and how full it is.",
      params: runnerParams,
      querystring: runnerQuery,
      response: answers(infoAnswer),
    },
    handler: async ({ overlay, params, query }) => {
      const config = await describeRunnerConfig(overlay, { ...params, ...query });
      const where = { network: config.networkName, runner: config.runnerName, limit: 0 };
      const [room] = await availableAddresses(overlay, where);
      return { ...config, capacity: room!.capacity, held: room!.held, available: room!.available };
    },
  });

  app.route({
    method: "GET",
    url: "/runners/:runner",
    config: { scope: "read" },
    schema: {
      operationId: "showRunner",
      summary: "All that a machine needs to configure itself as a runner.",
      params: runnerParams,
      querystring: runnerQuery,
      response: answers(configAnswer),
    },
    handler: async ({ overlay, params, query }) => describeRunnerConfig(overlay, { ...params, ...query }),
  });

  app.route({
    method: "POST",
    url: "/runners/:runner/heartbeat",
    config: { scope: "reserve" },
    schema: {
      operationId: "heartbeatRunner",
      summary: "Record that a runner is alive, so that its id is not reclaimed as inactive.",
      params: runnerParams,
      querystring: runnerQuery,
      response: answers(z.object(heartbeatFields).meta({ id: "Heartbeat" })),
    },
    handler: async ({ overlay, params, query }) => heartbeatRunner(overlay, { ...params, ...query }),
  });

  app.route({
    method: "POST",
    url: "/runners/:runner/report",
    bodyLimit: Math.max(limits.bodyLimit, REPORT_LIMIT),
    config: { scope: "reserve" },
    schema: {
      operationId: "reportRunner",
      summary: "Tell what runs on a runner: it becomes used, and what has gone is listed and, if asked, released.",
      params: runnerParams,
      querystring: runnerQuery,
      body: reportInput.omit({ network: true, runner: true }).strict(),
      response: answers(reportAnswer),
    },
    handler: async ({ overlay, params, query, body }) => reportRunner(overlay, { ...body, ...params, ...query }),
  });
};
