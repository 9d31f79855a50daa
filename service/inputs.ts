import { z } from "zod";
import { boundsFields } from "../provider/access/caller";
import {
  availableInput,
  createPoolInput,
  freeInput,
  poolChoiceInput,
  poolPageInput,
  releaseInput,
  reportInput,
  reserveInput,
  runnerInput,
  searchInput,
  useInput,
  validateInput,
} from "../provider/reservations/inputs";
import { webhookInput } from "../provider/webhooks/webhooks";
import { POSITION_FORM, parsePosition } from "./events/position";

/**
 * Inputs of routes: those of the functions in `reservations/`, with `container` for `by`, `cursor` for `after` and `label` for `labels`. Those of `ip/…` can be in
 * the query or in the body, so that a body is optional, and what must be given is optional in each.
 */

const container = releaseInput.shape.by;

const { by: reservedFor, key, ...reserve } = reserveInput.shape;
export const reserveFields = z.strictObject({ ...reserve, container: reservedFor });

export const idempotencyHeaders = z.object({ "idempotency-key": key });

export const validateFields = validateInput.partial({ token: true }).strict();

export const useFields = useInput.omit({ by: true }).extend({ container }).strict();

export const releaseFields = releaseInput.omit({ by: true }).extend({ container }).strict();

export const freeFields = freeInput.strict();

const { by: usedBy, labels, after, tenant: _, ...search } = searchInput.shape;
export const searchFields = z.strictObject({
  ...search,
  tenant: boundsFields.tenant.describe("Only of this tenant, ORGANIZATION/PROJECT."),
  container: usedBy,
  label: z
    .union([labels.unwrap().element, labels.unwrap()])
    .transform((given) => [given].flat())
    .optional()
    .describe("Only with this label, KEY=VALUE; may be repeated."),
  cursor: after,
});

export const placeFields = poolChoiceInput.strict();

export const availableFields = availableInput
  .omit({ after: true })
  .extend({ cursor: availableInput.shape.after })
  .strict();

const lastChanges = poolPageInput.shape.limit.describe("How many of the last changes.");

export const historyFields = z.strictObject({ limit: lastChanges });
export const addressHistoryFields = poolChoiceInput.extend({ limit: lastChanges }).strict();

export const poolPageFields = poolPageInput
  .omit({ after: true })
  .extend({ cursor: poolPageInput.shape.after })
  .strict();

export const createPoolFields = createPoolInput;

export const runnerFields = runnerInput.omit({ runner: true }).strict();

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
