import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { must } from "../../lab/process";
import { root } from "../../setup/tools.mjs";

/** The reference of `pulumi-overlay/client`, as `npm run reference` makes it. */
const folder = mkdtempSync(join(tmpdir(), "overlay-reference-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const textOf = (page: string) =>
  readFileSync(join(folder, page), "utf8")
    .replace(/<[^>]*>/g, " ")
    .replace(/\s+/g, " ");

test("the reference of the client has its methods and, with their descriptions, the properties of inputs and answers", async () => {
  const typedoc = join(root, "node_modules/typedoc/bin/typedoc");
  await must([process.execPath, typedoc, "--options", join(root, "setup/reference/typedoc.json"), "--out", folder]);
  expect(textOf("classes/OverlayClient.html")).toContain("Reserves an address on a runner, on any runner of a network");
  expect(textOf("interfaces/ReserveInput.html")).toContain("Seconds for which it may stay unused");
  expect(textOf("interfaces/Reservation.html")).toContain("Lets its bearer use the reservation. Secret.");
}, 240_000);
