import { expect, test } from "vitest";
import { showEvent } from "../../../provider/access";
import type { Event } from "../../../provider/pool/types";

const ended: Event = {
  at: 0,
  what: "reclaimed",
  pool: "network/n",
  owner: "mine",
  uid: "u",
  leaseId: "l",
  extents: [{ first: 1n, last: 1n }],
  takenBy: "secret",
};

test("a reader of one tenant does not see which owner has the values now", () => {
  expect(showEvent({ tenant: { org: "acme", project: "web" } }, ended)).toEqual({ ...ended, takenBy: undefined });
  expect(showEvent({ network: "n" }, ended)).toBe(ended);
});
