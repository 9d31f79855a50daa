import { createWebhook, listWebhooks, removeWebhook, resumeWebhook, webhookInput } from "../provider/webhooks/webhooks";
import { command, parseOptions, withPool } from "./command";

/** `overlayctl webhook`: receivers of events. `overlayctl serve` delivers to them. */

const COLUMNS = [
  "id",
  "url",
  "tenant",
  "network",
  "pool",
  "state",
  "delivered",
  "pending",
  "retryAt",
  "error",
] as const;

export const webhookAddCommand = () =>
  command("add", "Send events from now on to a URL, and print the secret that signs them. It cannot be shown again.")
    .argument("<url>", "https://…, or http://… on loopback")
    .option("--tenant <org/project>", "only events of this tenant")
    .option("--network <name>", "only events of this network and its runners")
    .option("--pool <name>", "only events of this pool: an IPPool, or runner/NETWORK/RUNNER")
    .action(
      withPool<object>(async ({ pool, settings, out }, options, url) => {
        const input = parseOptions(webhookInput, { ...options, url }, { url: "URL" });
        const { id, url: target, secret } = await createWebhook({ pool, createdBy: settings.actor }, input);
        out.one({ id, url: target, secret });
      }),
    );

export const webhookListCommand = () =>
  command("list", "List webhooks, and how far each has come.").action(
    withPool(async ({ pool, out }) => {
      const webhooks = await listWebhooks(pool);
      out.list(webhooks, [...COLUMNS]);
      if (webhooks.length === 0) out.note("There is no webhook.");
    }),
  );

export const webhookResumeCommand = () =>
  command("resume", "Try a failing or suspended webhook again, with the event at which it stopped.")
    .argument("<id>")
    .action(
      withPool(async ({ pool, out }, _, id) => {
        await resumeWebhook(pool, id!);
        out.one({ id: id!, resumed: true });
      }),
    );

export const webhookRemoveCommand = () =>
  command("remove", "Remove a webhook. Events that it has not got yet are not delivered.")
    .argument("<id>")
    .action(
      withPool(async ({ pool, out }, _, id) => {
        await removeWebhook(pool, id!);
        out.one({ id: id!, removed: true });
      }),
    );
