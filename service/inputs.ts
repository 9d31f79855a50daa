import { z } from "zod";
import { boundsFields } from "../provider/access/caller";
import {
  availableInput,
  createPoolInput,
  poolPageInput,
  releaseInput,
  reportInput,
  reserveInput,
  runnerInput,
  searchInput,
  validateInput,
} from "../provider/reservations/inputs";
import { webhookInput } from "../provider/webhooks/webhooks";
import { POSITION_FORM, parsePosition } from "./events/position";

/**
 * Inputs of routes: those of the functions in `reservations/`, as they are written in a query or in JSON. A body is optional, because
 * the query may have all inputs.
 */

/** In a query, all values are text. */
export const flag = z.union(
  [z.boolean(), z.enum(["true", "false"]).transform((text) => text === "true")],
  "must be true or false",
);

const where = {
  runner: reserveInput.shape.runner.describe(
    "The runner: NAME if only one network has it, NETWORK/NAME, or NAME with `network`.",
  ),
  network: reserveInput.shape.network.describe("The network of the runner."),
  pool: reserveInput.shape.pool.describe("Instead of a runner: an IPPool, or any pool of addresses or ports."),
};

const container = reserveInput.shape.by.describe("The container or virtual machine.");
const token = releaseInput.shape.token.describe("The token that `ip/reserve` answered.");
const vm = flag.optional().describe("For a virtual machine.");
const address = {
  ip: reserveInput.shape.ip.describe("The address."),
  port: reserveInput.shape.port.describe("In a pool of ports: the port."),
};

export const reserveFields = z.strictObject({
  ...where,
  ...address,
  anyRunner: flag.optional().describe("On any runner of `network`."),
  placement: reserveInput.shape.placement.describe("How any runner is chosen; default mostFree."),
  type: reserveInput.shape.type.describe("Instead of a pool: the tenant's own pool of this type, made at first use."),
  tenant: reserveInput.shape.tenant.describe(
    "With `type`: ORGANIZATION/PROJECT. Default: the tenant of the access token.",
  ),
  count: reserveInput.shape.count.describe("Number of addresses, all or none. With `count` the answer is a list."),
  container: container.describe("The container that it is for; the same container gets the same reservation again."),
  owner: reserveInput.shape.owner.describe("Instead of a container: the same owner gets the same reservation again."),
  ttl: reserveInput.shape.ttl.describe("Seconds for which it may stay unused; default 300, 1800 with `vm`."),
  vm,
});

export const idempotencyHeaders = z.object({
  "idempotency-key": reserveInput.shape.key.describe("A request with the same key gets the same reservation again."),
});

export const validateFields = z.strictObject({
  token,
  runner: validateInput.shape.runner.describe("The runner that the token must be for: NAME or NETWORK/NAME."),
  offline: flag.optional().describe("Check signature and expiry only, without the store."),
});

export const useFields = z.strictObject({ ...where, ...address, token, container, vm });

export const releaseFields = z.strictObject({ ...where, token, container });

export const freeFields = z.strictObject({
  ...where,
  ...address,
  force: flag.optional().describe("Also if a Pulumi stack holds it; its next run requests it again."),
});

export const searchFields = z.strictObject({
  ...where,
  ip: searchInput.shape.ip.describe("Only this address."),
  tenant: boundsFields.tenant.describe("Only of this tenant, ORGANIZATION/PROJECT."),
  owner: searchInput.shape.owner.describe("Only of owners whose name contains this text."),
  container: container.describe("Only of this container."),
  label: z
    .union([searchInput.shape.labels.unwrap().element, searchInput.shape.labels.unwrap()])
    .transform((given) => [given].flat())
    .optional()
    .describe("Only with this label, KEY=VALUE; may be repeated."),
  state: searchInput.shape.state.describe("Default: reserved and used."),
  limit: searchInput.shape.limit.describe("Entries of the page."),
  cursor: searchInput.shape.after.describe("`next` of the page before."),
});

export const placeFields = z.strictObject(where);

export const availableFields = z.strictObject({
  ...where,
  limit: availableInput.shape.limit.describe("How many free addresses of each pool are listed; default 100."),
  cursor: availableInput.shape.after.describe("`next` of the page before."),
});

const lastChanges = poolPageInput.shape.limit.describe("How many of the last changes.");

export const historyFields = z.strictObject({ limit: lastChanges });
export const addressHistoryFields = z.strictObject({ ...where, limit: lastChanges });

export const poolPageFields = z.strictObject({
  prefix: poolPageInput.shape.prefix.describe("What their names begin with, such as `runner/training/`."),
  limit: poolPageInput.shape.limit.describe("Entries of the page."),
  cursor: poolPageInput.shape.after.describe("`next` of the page before."),
});

export const createPoolFields = createPoolInput;

export const runnerFields = z.strictObject({
  network: runnerInput.shape.network.describe("The network of the runner."),
});

export const reportFields = reportInput.omit({ network: true, runner: true }).strict();

const position = z
  .union([z.number().int().min(0).transform(String), z.string()])
  .pipe(z.string().regex(POSITION_FORM, "must be the id of an event"))
  .transform(parsePosition);

export const eventFields = z.strictObject({
  after: position
    .optional()
    .describe("Start after the event with this id. Default: the header Last-Event-ID, else the events from now on."),
  pool: z.string().min(1).optional().describe("Only of this pool: an IPPool, or runner/NETWORK/RUNNER."),
  tenant: boundsFields.tenant.describe("Only of this tenant: ORGANIZATION/PROJECT."),
});

export const eventHeaders = z.looseObject({
  "last-event-id": position.optional().describe("Id of the last event received."),
});

export const webhookFields = z.strictObject(webhookInput.shape);
