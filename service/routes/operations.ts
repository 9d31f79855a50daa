import type { Caller } from "../../provider/access/caller";
import { hasScope } from "../../provider/access/caller";
import { openSession } from "../../provider/access/tenant-ipam";
import { answerOf, bodyOf, OPERATIONS, serveCall } from "../../provider/ipam/remote/api";
import type { RouteGroup } from "../app";

/** Bytes of a call: a stack may import many leases at once. */
const CALL_LIMIT = 2 ** 20;

/**
 * The service as a store, for stacks without access to the database. These routes are for the client of the same or an earlier release
 * (`ipam/remote`), so they are not in the OpenAPI document.
 */
export const operationRoutes: RouteGroup = (app, { pool, limits, tenantDefaults }) => {
  for (const name of OPERATIONS) {
    app.route({
      method: "POST",
      url: `/${name}`,
      bodyLimit: Math.max(limits.bodyLimit, CALL_LIMIT),
      config: { scope: "preview" },
      schema: { hide: true, body: bodyOf(name), response: { 200: answerOf(name) } },
      handler: async ({ body, caller, rowsRead }) =>
        serveCall(name, body, userOf(caller), (session) =>
          openSession(pool, caller, { ...session, tenantDefaults, rowsRead }),
        ),
    });
  }
};

const userOf = (caller: Caller) => ({
  name: caller.name,
  may: (scope: "preview" | "deploy") => hasScope(caller, scope),
});
