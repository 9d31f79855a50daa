import { afterAll, beforeAll, expect, test } from "vitest";
import { Ctl, deploy } from "../unit/cli/ctl";

const ctl = new Ctl();
beforeAll(() => ctl.withPool((pool) => deploy(pool, ["node1"])));
afterAll(() => ctl.remove());

test("a webhook is added, listed, resumed and removed; its secret is shown once", async () => {
  expect((await ctl.run("webhook", "list")).stderr).toBe("There is no webhook.\n");
  const [added] = await ctl.must("webhook", "add", "https://hooks.example.com/a", "--network", "training");
  expect(added).toEqual({
    id: expect.stringMatching(/^[0-9a-f]{8}$/),
    url: "https://hooks.example.com/a",
    secret: expect.stringMatching(/^whsec_[\w-]{43}$/),
  });
  const [listed] = await ctl.must("webhook", "list");
  const { events: last } = await ctl.withPool(async (pool) => ({ events: (await pool.events({})).last }));
  expect(listed).toMatchObject({ id: added!.id, network: "training", state: "active", delivered: last, pending: 0 });
  const shown = [await ctl.run("webhook", "list"), await ctl.run("store", "dump")];
  for (const { stdout } of shown) expect(stdout).toContain(added!.id);
  for (const { stdout } of shown) expect(stdout).not.toContain("whsec_");

  await ctl.withPool((pool) =>
    pool.admin.webhooks.updateDelivery(String(added!.id), (delivery) => ({
      ...delivery,
      failures: 9,
      failedSince: 0,
      error: "The receiver answered with status 503.",
      suspended: true,
    })),
  );
  expect(await ctl.must("webhook", "list")).toMatchObject([{ state: "suspended", failures: 9 }]);
  await ctl.must("webhook", "resume", String(added!.id));
  expect(await ctl.must("webhook", "list")).toMatchObject([{ state: "active" }]);
  await ctl.must("webhook", "remove", String(added!.id));
  expect(await ctl.must("webhook", "list")).toEqual([]);
});

test.each([
  [["add", "http://example.com/"], "2 INPUT_INVALID"],
  [["add", "https://example.com/", "--tenant", "acme"], "2 INPUT_INVALID"],
  [["add", "https://example.com/", "--pool", "none"], "1 POOL_NOT_FOUND"],
  [["remove", "ffffffff"], "1 WEBHOOK_NOT_FOUND"],
  [["resume", "ffffffff"], "1 WEBHOOK_NOT_FOUND"],
])("webhook %j: %s", async (args, expected) => {
  expect(await ctl.refusal("webhook", ...args)).toBe(expected);
});
