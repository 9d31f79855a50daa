import { answers } from "../answers";
import type { RouteGroup } from "../app";
import { readinessOf } from "../readiness";
import { healthAnswer, readinessAnswer } from "../schemas/health";

/** Whether the process lives, and whether it can serve. */
export const healthRoutes: RouteGroup = (app, { pool }) => {
  const isReady = readinessOf(pool);

  app.route({
    method: "GET",
    url: "/healthz",
    config: { scope: "public" },
    schema: {
      operationId: "checkHealth",
      summary: "Whether the process lives.",
      response: answers(healthAnswer, []),
    },
    handler: async () => ({ status: "ok" as const }),
  });

  app.route({
    method: "GET",
    url: "/readyz",
    config: { scope: "public" },
    schema: {
      operationId: "checkReadiness",
      summary: "Whether the store answers; 503 if not, and while the process ends.",
      response: answers(readinessAnswer, [503]),
    },
    handler: async () => {
      await isReady();
      return { status: "ready" as const };
    },
  });
};
