import { OverlayError } from "../../errors";
import type { Pool } from "../../pool/types";
import { DEFAULT_SPACE } from "../../pool-names";
import { answers } from "../answers";
import type { RouteGroup } from "../app";
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
      response: answers(healthAnswer),
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
      response: answers(readinessAnswer),
    },
    handler: async () => {
      await isReady();
      return { status: "ready" as const };
    },
  });
};

/** Milliseconds. */
const STORE_TIMEOUT = 2000;

/** Requests at the same time share one read. */
function readinessOf(pool: Pool): () => Promise<void> {
  let check: Promise<void> | undefined;
  return () => {
    check ??= readStore(pool).finally(() => {
      check = undefined;
    });
    return check;
  };
}

async function readStore(pool: Pool): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(storeLateError()), STORE_TIMEOUT);
  });
  try {
    await Promise.race([pool.spec(DEFAULT_SPACE), late]);
  } finally {
    clearTimeout(timer);
  }
}

const storeLateError = (): OverlayError =>
  new OverlayError(
    "STORE_UNAVAILABLE",
    `The store has not answered within ${STORE_TIMEOUT / 1000} s.`,
    "Check the database and the way to it.",
  );
