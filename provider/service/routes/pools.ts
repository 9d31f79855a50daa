import { z } from "zod";
import {
  createPool,
  createPoolInput,
  deletePool,
  describeEvent,
  historyOfPool,
  poolPageInput,
  poolUsages,
  showPool,
} from "../../reservations";
import { answers, count, time } from "../answers";
import type { RouteGroup } from "../app";
import { pageSize } from "../inputs";

export const roomFields = {
  capacity: count.describe("How many values it can give out."),
  allocated: count.describe("Held or offered."),
  available: count.describe("Neither held nor offered; those in quarantine are given out last."),
  offered: z.number().int().describe("Leases that a preview has promised."),
  reserved: z.number().int(),
  used: z.number().int(),
  quarantined: z.number().int(),
  utilization: z.number().describe("Percentage that is held or offered."),
};

const poolFields = {
  pool: z.string(),
  kind: z.enum(["space", "address", "id", "port"]),
  range: z.string(),
  allocation: z.string(),
  tenant: z.string().optional(),
  ...roomFields,
};

const poolAnswer = z.object(poolFields).meta({ id: "Pool" });

const poolStatusAnswer = z
  .object({
    ...poolFields,
    growthLastHour: z.number().describe("Values that were given out, less those that were returned."),
    growthLastDay: z.number(),
    exhaustedInSeconds: z.number().optional().describe("At the faster of both rates; absent when it does not grow."),
  })
  .meta({ id: "PoolStatus" });

const changeAnswer = z
  .object({
    at: time,
    what: z.string().describe("`claimed`, `used`, `released`, `expired`, …"),
    value: z.string(),
    pool: z.string(),
    owner: z.string(),
    usedBy: z.string().optional(),
    by: z.string().optional().describe("User, or name of the access token."),
    takenBy: z.string().optional(),
    formerOwner: z.string().optional(),
    tenant: z.string().optional(),
    leaseId: z.string(),
  })
  .meta({ id: "Change" });

export const historyAnswer = z.object({ changes: z.array(changeAnswer) }).meta({ id: "History" });
export const lastChanges = poolPageInput.shape.limit.describe("How many of the last changes.");

const poolParams = z.object({
  pool: z.string().min(1).describe("NAME of an IPPool, or the whole name, with `/` written as `%2F`."),
});

/** Pools of all kinds: how full they are, and their history. Pools that are made here belong to no stack. */
export const poolRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/pools",
    config: { scope: "read" },
    schema: {
      operationId: "listPools",
      summary: "List pools by name.",
      querystring: z.strictObject({
        prefix: poolPageInput.shape.prefix.describe("What their names begin with, such as `runner/training/`."),
        limit: poolPageInput.shape.limit.describe("Entries of the page."),
        cursor: poolPageInput.shape.after.describe("`next` of the page before."),
      }),
      response: answers(z.object({ pools: z.array(poolAnswer), next: z.string().optional() }).meta({ id: "PoolPage" })),
    },
    handler: async ({ overlay, query: { prefix, limit, cursor } }) => {
      const size = pageSize(limit, limits);
      const pools = await poolUsages(overlay, { prefix, limit: size, after: cursor });
      return { pools, ...(pools.length === size && { next: pools.at(-1)!.pool }) };
    },
  });

  app.route({
    method: "GET",
    url: "/pools/:pool",
    config: { scope: "read" },
    schema: {
      operationId: "showPool",
      summary: "How full a pool is, and when it is exhausted at its present rate.",
      params: poolParams,
      response: answers(poolStatusAnswer),
    },
    handler: async ({ overlay, params }) => showPool(overlay, params.pool),
  });

  app.route({
    method: "GET",
    url: "/pools/:pool/history",
    config: { scope: "read" },
    schema: {
      operationId: "showPoolHistory",
      summary: "The last changes of a pool, oldest first.",
      params: poolParams,
      querystring: z.strictObject({ limit: lastChanges }),
      response: answers(historyAnswer),
    },
    handler: async ({ overlay, params, query }) => {
      const events = await historyOfPool(overlay, params.pool);
      return { changes: events.slice(-pageSize(query.limit, limits)).map(describeEvent) };
    },
  });

  app.route({
    method: "POST",
    url: "/pools",
    config: { scope: "admin" },
    schema: {
      operationId: "createPool",
      summary: "Create an IPPool. The same request again answers the same pool.",
      body: createPoolInput,
      response: answers(poolStatusAnswer),
    },
    handler: async ({ overlay, body }) => showPool(overlay, (await createPool(overlay, body)).name),
  });

  app.route({
    method: "DELETE",
    url: "/pools/:pool",
    config: { scope: "admin" },
    schema: {
      operationId: "deletePool",
      summary: "Delete an IPPool that was created here and has no leases.",
      params: poolParams,
      response: answers(z.object({ deleted: z.string().describe("The whole name of the pool.") })),
    },
    handler: async ({ overlay, params }) => ({ deleted: (await deletePool(overlay, params.pool)).name }),
  });
};
