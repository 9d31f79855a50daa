import { expect, test } from "vitest";
import { findViolations, type Stored } from "../../../chaos/check";
import { type Entry, entriesIn } from "../../../chaos/ledger";

/** `1 a claim 7/x` means: at 1, a claims, and at 1.5 it is told value 7 under lease id x. */
function ledger(...lines: string[]): Entry[] {
  return lines.map((line) => {
    const [at, owner, call, answer = ""] = line.split(" ") as [string, string, string, string?];
    const result = resultOf(answer);
    const [name, leaseId] = call.split(":");
    return {
      at: Number(at),
      owner,
      call: name!.replace("stale-", ""),
      ...(leaseId && { leaseId }),
      ...(name!.startsWith("stale-") && { stale: true }),
      ...(result && { answeredAt: Number(at) + 0.5, result }),
    } as Entry;
  });
}

function resultOf(text: string): Entry["result"] {
  if (text === "") return undefined;
  if (text === "nothing") return { none: true };
  if (text === "yes" || text === "no") return { did: text === "yes" };
  if (!text.includes("/")) return { failed: text };
  const [value, leaseId, state = "reserved"] = text.split("/") as [string, string, string?];
  return { got: { value, leaseId, state } };
}

const stored = (...leases: string[]): Stored[] =>
  leases.map((lease) => {
    const [owner, value, leaseId, state = "reserved"] = lease.split(/[ /]/) as [string, string, string, string?];
    return { owner, value, leaseId, state };
  });

const found = (entries: Entry[], leases: Stored[]): string[] =>
  findViolations(entries, leases).map(({ kind, owner, what }) => `${kind}: ${owner} ${what}`);

test.each<[string, string[], string[]]>([
  ["a claim that stands", ["1 a claim 7/x"], ["a 7/x"]],
  ["a release", ["1 a claim 7/x", "2 a release:x yes"], []],
  ["one value of two owners, one after another", ["1 a claim 7/x", "2 a release:x yes", "3 b claim 7/y"], ["b 7/y"]],
  [
    "a value that is given to another owner before the release is answered",
    ["1 a claim 7/x", "2 a release:x", "2.1 b claim 7/y"],
    ["b 7/y"],
  ],
  ["an interrupted claim, with or without effect", ["1 a claim", "2 b claim"], ["a 7/x"]],
  [
    "an interrupted release, with or without effect",
    ["1 a claim 7/x", "2 a release:x", "1 b claim 8/y", "2 b release:y"],
    ["a 7/x"],
  ],
  ["an interrupted use", ["1 a claim 7/x", "2 a use:x"], ["a 7/x/used"]],
  ["an interrupted renewal", ["1 a claim 7/x", "2 a claim"], ["a 7/y"]],
  ["a renewal, and a release by the old id", ["1 a claim 7/x", "2 a claim 7/y", "3 a stale-release:x no"], ["a 7/y"]],
  ["a store that did not answer", ["1 a claim STORE_UNAVAILABLE", "2 a claim 7/x"], ["a 7/x"]],
  ["a pool that was full", ["1 a claim POOL_EXHAUSTED"], []],
  [
    "finds before and after each call",
    [
      "1 a find nothing",
      "2 a claim 7/x",
      "3 a find 7/x",
      "4 a use:x 7/x/used",
      "5 a find 7/x/used",
      "6 a release:x yes",
    ],
    [],
  ],
  ["an interrupted claim that takes effect late", ["1 a claim", "2 a find nothing", "3 a find 7/x"], ["a 7/x"]],
  [
    "an interrupted release that takes effect late",
    ["1 a claim 7/x", "2 a release:x", "3 a find 7/x", "4 b claim 7/y", "5 a find nothing"],
    ["b 7/y"],
  ],
  ["an interrupted use that takes effect late", ["1 a claim 7/x", "2 a use:x", "3 a find 7/x"], ["a 7/x/used"]],
  ["an interrupted renewal that takes effect late", ["1 a claim 7/x", "2 a claim", "3 a find 7/x"], ["a 7/y"]],
])("nothing is wrong with %s", (_, entries, leases) => {
  expect(found(ledger(...entries), stored(...leases))).toEqual([]);
});

test.each<[string, string[], string[], string[]]>([
  [
    "a value given twice",
    ["1 a claim 7/x", "2 b claim 7/y", "3 a release:x yes"],
    ["b 7/y"],
    ["duplicate: b was given 7, which a held"],
  ],
  [
    "a value given twice before a release that came later",
    ["1 a claim 7/x", "2 b claim 7/y", "3 b release:y yes", "4 c claim 7/z", "5 a release:x yes"],
    ["c 7/z"],
    ["duplicate: b was given 7, which a held", "duplicate: c was given 7, which a held"],
  ],
  [
    "a value that two have in the store",
    ["1 a claim", "1 b claim"],
    ["a 7/x", "b 7/y"],
    ["duplicate: b has 7 in the store, and so has a"],
  ],
  ["a lease that is gone", ["1 a claim 7/x"], [], ["lost: a held 7 under x; the store has nothing"]],
  [
    "a lease that could not be used",
    ["1 a claim 7/x", "2 a use:x LEASE_FENCED"],
    [],
    ["lost: a 7 was held under x, and could not be used"],
  ],
  [
    "a lease that could not be released",
    ["1 a claim 7/x", "2 a release:x no"],
    [],
    ["lost: a 7 was held under x, and could not be released"],
  ],
  [
    "a lease that was gone when it was claimed again",
    ["1 a claim 7/x", "2 a claim POOL_EXHAUSTED"],
    [],
    ["lost: a 7 was held, then nothing was left"],
  ],
  [
    "a release that was undone",
    ["1 a claim 7/x", "2 a release:x yes"],
    ["a 7/x"],
    ["lost: a released 7; the store still has it"],
  ],
  ["another value in the store", ["1 a claim 7/x"], ["a 8/x"], ["changed: a value was 7; the store has 8"]],
  ["another id in the store", ["1 a claim 7/x"], ["a 7/y"], ["changed: a leaseId was x; the store has y"]],
  [
    "another state in the store",
    ["1 a claim 7/x", "2 a use:x 7/x/used"],
    ["a 7/x"],
    ["changed: a state was used; the store has reserved"],
  ],
  [
    "another value when it was claimed again",
    ["1 a claim 7/x", "2 a claim 8/y"],
    ["a 8/y"],
    ["changed: a held 7, and was then given 8"],
  ],
  [
    "another value after an interrupted renewal",
    ["1 a claim 7/x", "2 a claim", "3 a claim 8/y"],
    ["a 8/y"],
    ["changed: a held 7, and was then given 8"],
  ],
  [
    "an old id that released",
    ["1 a claim 7/x", "2 a claim 7/y", "3 a stale-release:x yes"],
    [],
    ["changed: a 7 was released by an id that had been renewed"],
  ],
  [
    "a lease that is not found",
    ["1 a claim 7/x", "2 a find nothing"],
    ["a 7/x"],
    ["lost: a 7 was held, and was not found", "lost: a released 7; the store still has it"],
  ],
  [
    "a find of what was over before it",
    ["1 a claim 7/x", "2 a release:x yes", "3 a find 7/x", "4 a claim 8/y"],
    ["a 8/y"],
    ["changed: a nothing was held, and 7 was found", "changed: a held 7, and was then given 8"],
  ],
  [
    "a find of an id from before a renewal",
    ["1 a claim 7/x", "2 a claim 7/y", "3 a find 7/x", "4 a claim 7/z"],
    ["a 7/z"],
    ["changed: a leaseId was y, and x was found"],
  ],
  [
    "a value given twice, of which a find shows the first holder",
    ["1 a claim", "2 a find 7/x", "3 b claim 7/y", "4 b release:y yes"],
    ["a 7/x"],
    ["duplicate: b was given 7, which a held"],
  ],
  [
    "a release by an old id that gives the value to another",
    ["1 a claim 7/x", "2 a release:x", "3 a claim 7/y", "4 b claim 7/z", "5 b release:z yes"],
    ["a 7/y"],
    ["duplicate: b was given 7, which a held"],
  ],
  ["two leases of one owner", ["1 a claim 7/x"], ["a 7/x", "a 8/y"], ["changed: a has 2 leases"]],
  ["a lease without a claim", [], ["a 7/x"], ["changed: a has a lease, but never asked for one"]],
  ["an unexpected error", ["1 a claim STORE_CORRUPT"], [], ["fault: a claim failed with STORE_CORRUPT"]],
])("it finds %s", (_, entries, leases, expected) => {
  expect(found(ledger(...entries), stored(...leases))).toEqual(expected);
});

test("a call without an answer, and an incomplete line, are interrupted calls", () => {
  const text = [
    '{"id":0,"at":1,"owner":"a","call":"claim"}',
    '{"id":1,"at":2,"owner":"b","call":"claim"}',
    '{"id":0,"answeredAt":3,"result":{"got":{"value":"7","leaseId":"x","state":"reserved"}}}',
    '{"id":1,"answeredAt":4,"res',
  ].join("\n");
  expect(entriesIn(text)).toEqual([
    {
      at: 1,
      owner: "a",
      call: "claim",
      answeredAt: 3,
      result: { got: { value: "7", leaseId: "x", state: "reserved" } },
    },
    { at: 2, owner: "b", call: "claim" },
  ]);
});
