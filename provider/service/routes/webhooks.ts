import { z } from "zod";
import { createWebhook, listWebhooks, removeWebhook, resumeWebhook, webhookInput } from "../../webhooks";
import { answers } from "../answers";
import type { RouteGroup } from "../app";

const time = z.string().describe("RFC 3339, in UTC.");

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
  .meta({ id: "Webhook" });

const createdAnswer = z
  .object({ id: z.string(), url: z.string(), secret: z.string().describe("Signs deliveries. It is not shown again.") })
  .meta({ id: "CreatedWebhook" });

const done = z.object({ id: z.string() });
const idParams = z.strictObject({ id: z.string().min(1).describe("Id of the webhook.") });

/** Receivers of events by HTTP. They are for operators: a caller with bounds is refused by its pool. */
export const webhookRoutes: RouteGroup = (app, { deliveries }) => {
  app.route({
    method: "GET",
    url: "/webhooks",
    config: { scope: "admin" },
    schema: {
      operationId: "listWebhooks",
      summary: "List the webhooks, and how far each has come.",
      response: answers(z.object({ webhooks: z.array(webhookAnswer) })),
    },
    handler: async ({ overlay }) => ({ webhooks: await listWebhooks(overlay.pool) }),
  });

  app.route({
    method: "POST",
    url: "/webhooks",
    config: { scope: "admin" },
    schema: {
      operationId: "addWebhook",
      summary: "Send events from now on to a URL: all, or those of a tenant, a network or a pool.",
      body: z.strictObject(webhookInput.shape),
      response: answers(createdAnswer),
    },
    handler: async ({ overlay, body, caller }) => {
      const { id, url, secret } = await createWebhook({ pool: overlay.pool, createdBy: caller.name }, body);
      deliveries.reload();
      return { id, url, secret };
    },
  });

  app.route({
    method: "POST",
    url: "/webhooks/:id/resume",
    config: { scope: "admin" },
    schema: {
      operationId: "resumeWebhook",
      summary: "Try a failing or suspended webhook again, with the event at which it stopped.",
      params: idParams,
      response: answers(done),
    },
    handler: async ({ overlay, params }) => {
      await resumeWebhook(overlay.pool, params.id);
      return params;
    },
  });

  app.route({
    method: "DELETE",
    url: "/webhooks/:id",
    config: { scope: "admin" },
    schema: { operationId: "removeWebhook", summary: "Remove a webhook.", params: idParams, response: answers(done) },
    handler: async ({ overlay, params }) => {
      await removeWebhook(overlay.pool, params.id);
      deliveries.reload();
      return params;
    },
  });
};
