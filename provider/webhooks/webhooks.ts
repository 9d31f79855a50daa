import { createHmac, randomBytes } from "node:crypto";
import { z } from "zod";
import { boundsFields, describeBounds, resolveBounds } from "../access/caller";
import type { WebhookInfo } from "../answers";
import { OverlayError } from "../errors";
import { formatTime } from "../format-time";
import type { Delivery, Webhook } from "../ipam/admin";
import { MOST_WEBHOOKS } from "../ipam/admin";
import type { Store } from "../ipam/types";
import { isLoopbackName } from "../loopback";

/** Makes, lists, resumes and removes webhooks. */

const LONGEST_URL = 2000;

/** A delivery has owners and addresses in it: in plain text it must not leave the machine. */
function isAllowedTarget(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, username, password, hash } = new URL(text);
  if (username !== "" || password !== "" || hash !== "") return false;
  return protocol === "https:" || (protocol === "http:" && isLoopbackName(hostname));
}

export const webhookInput = z.object({
  url: z
    .string()
    .max(LONGEST_URL)
    .refine(isAllowedTarget, "must be https://…, or http://… on loopback, without user, password and fragment"),
  ...boundsFields,
});

export type WebhookInput = z.output<typeof webhookInput>;

/** Returns the webhook with its secret, which no other function shows. It gets the events from now on. */
export async function createWebhook(
  { pool, createdBy }: { pool: Store; createdBy: string },
  input: WebhookInput,
  now = Date.now(),
): Promise<Webhook> {
  const webhook: Webhook = {
    id: randomBytes(4).toString("hex"),
    url: new URL(input.url).href,
    secret: `whsec_${randomBytes(32).toString("base64url")}`,
    ...(await resolveBounds(pool, input)),
    createdAt: now,
    createdBy,
  };
  if (await pool.admin.webhooks.add(webhook)) return webhook;
  throw new OverlayError(
    "WEBHOOK_LIMIT",
    `There are ${MOST_WEBHOOKS} webhooks already.`,
    "Remove one first: `overlayctl webhook list` shows them.",
  );
}

/** Without their secrets, oldest first. */
export async function listWebhooks(pool: Store): Promise<WebhookInfo[]> {
  const [webhooks, deliveries] = [await pool.admin.webhooks.list(), await pool.admin.webhooks.deliveries()];
  const { last } = await pool.events({});
  return webhooks
    .sort((a, b) => a.createdAt - b.createdAt)
    .flatMap((webhook) => {
      const delivery = deliveries.get(webhook.id);
      return delivery ? [describeWebhook(webhook, delivery, last)] : []; // removed meanwhile
    });
}

function describeWebhook(webhook: Webhook, delivery: Delivery, last: number): WebhookInfo {
  const { id, url, createdAt, createdBy } = webhook;
  const { delivered, failures, failedSince, retryAt, error, suspended } = delivery;
  return {
    ...{ id, url, ...describeBounds(webhook), createdAt: formatTime(createdAt), createdBy },
    state: suspended ? "suspended" : failures === undefined ? "active" : "failing",
    delivered,
    pending: Math.max(0, last - delivered),
    failures,
    failingSince: failedSince === undefined ? undefined : formatTime(failedSince),
    retryAt: retryAt === undefined ? undefined : formatTime(retryAt),
    error,
  };
}

export async function removeWebhook(pool: Store, id: string): Promise<void> {
  if (!(await pool.admin.webhooks.remove(id))) throw unknownWebhookError(id);
}

/** Tries a failing or suspended webhook again at once, with the event at which it stopped. */
export async function resumeWebhook(pool: Store, id: string): Promise<void> {
  const resumed = await pool.admin.webhooks.updateDelivery(id, ({ delivered, holder, heldUntil }) => ({
    delivered,
    ...(holder !== undefined && { holder, heldUntil }),
  }));
  if (!resumed) throw unknownWebhookError(id);
}

const unknownWebhookError = (id: string): OverlayError =>
  new OverlayError("WEBHOOK_NOT_FOUND", `There is no webhook '${id}'.`, "`overlayctl webhook list` shows their ids.");

/** Proves to a receiver that a delivery is from the holder of its secret, and when it was sent. */
export const SIGNATURE_HEADER = "overlay-signature";
/** The id of the newest event of a delivery. */
export const EVENT_ID_HEADER = "overlay-event-id";

/** `time`: seconds since 1970. */
export function signatureOf(secret: string, time: number, body: string): string {
  const digest = createHmac("sha256", secret).update(`${time}.${body}`).digest("hex");
  return `t=${time},v1=${digest}`;
}
