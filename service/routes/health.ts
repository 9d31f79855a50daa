import { healthAnswer, readinessAnswer } from "../../provider/answers";
import type { RouteGroup } from "../app";
import { readinessOf } from "../readiness";

/** Whether the process is running, and whether it can serve. */
export const healthRoutes: RouteGroup = (app, { pool }) => {
  const isReady = readinessOf(pool);

  app.route({
    method: "GET",
    url: "/healthz",
    config: { scope: "public" },
    schema: {
      operationId: "checkHealth",
      summary: "The process is running.",
      response: { 200: healthAnswer },
    },
    handler: async () => ({ status: "ok" as const }),
  });

  app.route({
    method: "GET",
    url: "/readyz",
    config: { scope: "public", failures: [503] },
    schema: {
      operationId: "checkReadiness",
      summary: "The store answers; 503 if not, and while the process is shutting down.",
      response: { 200: readinessAnswer },
    },
    handler: async () => {
      await isReady();
      return { status: "ready" as const };
    },
  });
};
