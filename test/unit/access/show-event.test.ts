import { expect, test } from "vitest";
import { showEvent } from "../../../provider/access/caller";
import type { Event } from "../../../provider/ipam/types";

const ended: Event = {
  at: 0,
  what: "reclaimed",
  pool: "network/n",
  owner: "mine",
  uid: "u",
  leaseId: "l",
  ranges: [{ first: 1n, last: 1n }],
  takenBy: "secret",
  by: "ci (bob@laptop)",
};

test("a reader of one tenant does not see which owner has the values now, and who took them", () => {
  const bounds = { tenant: { org: "acme", project: "web" } };
  expect(showEvent(bounds, ended)).toEqual({ ...ended, takenBy: undefined, by: undefined });
  const released: Event = { ...ended, what: "released", takenBy: undefined! };
  expect(showEvent(bounds, released)).toBe(released);
  expect(showEvent({ network: "n" }, ended)).toBe(ended);
});
