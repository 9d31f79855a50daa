import { z } from "zod";
import type { Caller } from "../../provider/access/caller";
import { openAsOperator } from "../../provider/access/tenant-ipam";
import { createdWebhookAnswer, webhookIdAnswer, webhooksAnswer } from "../../provider/answers";
import { createWebhook, listWebhooks, removeWebhook, resumeWebhook } from "../../provider/webhooks/webhooks";
import type { RouteGroup } from "../app";
import { webhookFields } from "../inputs";

const idParams = z.strictObject({ id: z.string().min(1).describe("Id of the webhook.") });

/** Receivers of events by HTTP. They are for operators: a caller with bounds is refused. */
export const webhookRoutes: RouteGroup = (app, { pool, deliveries }) => {
  const open = (caller: Caller) => openAsOperator(pool, caller, "webhooks");

  app.route({
    method: "GET",
    url: "/webhooks",
    config: { scope: "admin" },
    schema: {
      operationId: "listWebhooks",
      summary: "List the webhooks, and how far each has come.",
      response: { 200: webhooksAnswer },
    },
    handler: async ({ caller }) => ({ webhooks: await listWebhooks(open(caller)) }),
  });

  app.route({
    method: "POST",
    url: "/webhooks",
    config: {
      scope: "admin",
      failures: [404, 409],
      example: { url: "http://127.0.0.1:9000/hook", network: "training" },
    },
    schema: {
      operationId: "addWebhook",
      summary: "Send events from now on to a URL: all, or those of a tenant, a network or a pool.",
      body: webhookFields,
      response: { 200: createdWebhookAnswer },
    },
    handler: async ({ body, caller }) => {
      const { id, url, secret } = await createWebhook({ pool: open(caller), createdBy: caller.name }, body);
      deliveries.reload();
      return { id, url, secret };
    },
  });

  app.route({
    method: "POST",
    url: "/webhooks/:id/resume",
    config: { scope: "admin", failures: [404] },
    schema: {
      operationId: "resumeWebhook",
      summary: "Try a failing or suspended webhook again, with the event at which it stopped.",
      params: idParams,
      response: { 200: webhookIdAnswer },
    },
    handler: async ({ caller, params }) => {
      await resumeWebhook(open(caller), params.id);
      return params;
    },
  });

  app.route({
    method: "DELETE",
    url: "/webhooks/:id",
    config: { scope: "admin", failures: [404] },
    schema: {
      operationId: "removeWebhook",
      summary: "Remove a webhook.",
      params: idParams,
      response: { 200: webhookIdAnswer },
    },
    handler: async ({ caller, params }) => {
      await removeWebhook(open(caller), params.id);
      deliveries.reload();
      return params;
    },
  });
};
