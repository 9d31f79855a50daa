import { isBounded } from "../../provider/access/tenant-ipam";
import { OverlayError } from "../../provider/errors";
import { textAnswer } from "../answers";
import type { RouteGroup } from "../app";

/** For Prometheus, which can send an access token: `authorization` in its scrape configuration. */
export const metricsRoutes: RouteGroup = (app, { pool, metrics, metricsPublic }) => {
  app.route({
    method: "GET",
    url: "/metrics",
    config: { scope: metricsPublic ? "public" : "read", needsStore: false },
    schema: {
      operationId: "readMetrics",
      summary: "Metrics of pools, requests and the store, in the text format of Prometheus.",
      response: { 200: textAnswer("text/plain", "Metrics in the text format of Prometheus.") },
    },
    handler: async (request, reply) => {
      if (!metricsPublic && isBounded(request.caller)) throw boundedError(request.caller.name);
      return reply.type(metrics.contentType).send(await metrics.render(pool));
    },
  });
};

const boundedError = (name: string): OverlayError =>
  new OverlayError(
    "ACCESS_DENIED",
    `Metrics are of all tenants and pools, and access token ${name} is bound to some.`,
    "Use a token without bounds.",
  );
