import { z } from "zod";
import { configAnswer, heartbeatAnswer, infoAnswer, reportAnswer } from "../../provider/answers";
import {
  availableAddresses,
  describeRunnerConfig,
  heartbeatRunner,
  reportRunner,
  runnerInput,
} from "../../provider/reservations";
import type { RouteGroup } from "../app";
import { reportFields, runnerFields } from "../inputs";

const runnerParams = z.object({
  runner: runnerInput.shape.runner.describe("NAME if only one network has it, or NETWORK%2FNAME."),
});

/** A report lists thousands of containers. Bytes. */
const REPORT_LIMIT = 2 ** 21;

/** Configuration, heartbeat and report of a runner. */
export const runnerRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/ip/info/:runner",
    config: { scope: "read", failures: [404] },
    schema: {
      operationId: "showRunnerInfo",
      summary: "The subnet of a runner, and how full it is.",
      params: runnerParams,
      querystring: runnerFields,
      response: { 200: infoAnswer },
    },
    handler: async ({ overlay, params, query }) => {
      const config = await describeRunnerConfig(overlay, { ...params, ...query });
      const where = { network: config.networkName, runner: config.runnerName, limit: 0 };
      const { pools } = await availableAddresses(overlay, where);
      const [room] = pools;
      return { ...config, capacity: room!.capacity, held: room!.held, available: room!.available };
    },
  });

  app.route({
    method: "GET",
    url: "/runners/:runner",
    config: { scope: "read", failures: [404] },
    schema: {
      operationId: "showRunner",
      summary: "All that a machine needs to configure itself as a runner with VXLAN.",
      params: runnerParams,
      querystring: runnerFields,
      response: { 200: configAnswer },
    },
    handler: async ({ overlay, params, query }) => describeRunnerConfig(overlay, { ...params, ...query }),
  });

  app.route({
    method: "POST",
    url: "/runners/:runner/heartbeat",
    config: { scope: "reserve", failures: [404, 409] },
    schema: {
      operationId: "heartbeatRunner",
      summary: "Record that a runner is alive, so that its id is not reclaimed as inactive.",
      params: runnerParams,
      querystring: runnerFields,
      response: { 200: heartbeatAnswer },
    },
    handler: async ({ overlay, params, query }) => heartbeatRunner(overlay, { ...params, ...query }),
  });

  app.route({
    method: "POST",
    url: "/runners/:runner/report",
    bodyLimit: Math.max(limits.bodyLimit, REPORT_LIMIT),
    config: {
      scope: "reserve",
      failures: [404, 409],
      example: { containers: [{ name: "db", ip: "10.128.64.78" }], complete: true },
    },
    schema: {
      operationId: "reportRunner",
      summary:
        "Report the workloads of a runner. Their addresses become `used`; addresses no longer in use are listed and, with `free`, released.",
      params: runnerParams,
      querystring: runnerFields,
      body: reportFields,
      response: { 200: reportAnswer },
    },
    handler: async ({ overlay, params, query, body }) => reportRunner(overlay, { ...body, ...params, ...query }),
  });
};
