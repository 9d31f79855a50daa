import { z } from "zod";
import { time } from "./lease";

/** Receivers of events by HTTP. */

const webhookAnswer = z
  .object({
    id: z.string(),
    url: z.string(),
    tenant: z.string().optional().describe("`ORGANIZATION/PROJECT`."),
    network: z.string().optional(),
    pool: z.string().optional(),
    createdAt: time,
    createdBy: z.string().optional(),
    state: z.enum(["active", "failing", "suspended"]).describe("`suspended`: not tried again before it is resumed."),
    delivered: z.number().int().describe("The newest event that the receiver has accepted, or that is not for it."),
    pending: z.number().int().describe("Events after that one, also those that are not for it."),
    failures: z.number().int().optional().describe("Failures in a row."),
    failingSince: time.optional(),
    retryAt: time.optional(),
    error: z.string().optional().describe("Why the last delivery failed."),
  })
  .meta({ id: "Webhook", description: "A receiver of events, and the state of its deliveries." });

export const createdWebhookAnswer = z
  .object({ id: z.string(), url: z.string(), secret: z.string().describe("Signs deliveries. It is not shown again.") })
  .meta({ id: "CreatedWebhook", description: "The webhook, with the secret that signs its deliveries." });

export const webhooksAnswer = z.object({ webhooks: z.array(webhookAnswer) }).describe("All webhooks.");

export const webhookIdAnswer = z.object({ id: z.string() }).describe("The id of the webhook.");
