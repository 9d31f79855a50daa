import fc from "fast-check";
import { expect, test } from "vitest";
import { describeAnomaly, findAnomalies } from "../../../chaos/linearizability/check";
import { type Operation, type Outcome, operationsOf } from "../../../chaos/linearizability/history";

/**
 * `1-2 a claim 7/x`: invoked at 1, answered at 2 with value 7 under lease id x. `use:x` and `release:x` name the lease id. Answers are a lease
 * (`7/x/used`), `ok`, `fail`; a call without an answer has no end: `1- a claim`.
 */
const history = (...lines: string[]): Operation[] => lines.map(operation);

function operation(line: string): Operation {
  const [times, owner, what, answer] = line.split(" ") as [string, string, string, string?];
  const [invokedAt, answeredAt] = times.split("-") as [string, string];
  const [call, leaseId] = what.split(":") as [Operation["call"], string?];
  return {
    process: "p",
    owner,
    call,
    ...(leaseId && { leaseId }),
    invokedAt: Number(invokedAt),
    answeredAt: answeredAt === "" ? Infinity : Number(answeredAt),
    outcome: outcome(answer),
  };
}

function outcome(answer: string | undefined): Outcome {
  if (answer === undefined) return { type: "unknown" };
  if (answer === "ok" || answer === "fail") return { type: answer };
  const [value, leaseId, state = "reserved"] = answer.split("/") as [string, string, string?];
  return { type: "ok", lease: { value, leaseId, state } };
}

/** As it was written above. */
const line = ({ invokedAt, answeredAt, owner, call, leaseId, outcome }: Operation): string => {
  const lease = outcome.type === "ok" && outcome.lease;
  const answer = lease
    ? [lease.value, lease.leaseId, ...(lease.state === "reserved" ? [] : [lease.state])].join("/")
    : outcome.type;
  return [
    `${invokedAt}-${answeredAt === Infinity ? "" : answeredAt}`,
    owner,
    [call, leaseId].filter(Boolean).join(":"),
    ...(outcome.type === "unknown" ? [] : [answer]),
  ].join(" ");
};

const found = (...lines: string[]) =>
  findAnomalies(history(...lines)).map(({ register, operations }) => [register, ...operations.map(line)]);

test.each<[string, string[]]>([
  ["nothing", []],
  [
    "a lease that is claimed, found, used, claimed again and released",
    [
      "1-2 a claim 7/x",
      "3-4 a find 7/x",
      "5-6 a use:x 7/x/used",
      "7-8 a claim 7/y/used",
      "9-10 a release:x fail",
      "11-12 a release:y ok",
      "13-14 a find ok",
    ],
  ],
  ["one address of two owners, one after another", ["1-2 a claim 7/x", "3-4 a release:x ok", "5-6 b claim 7/y"]],
  [
    "an address that is given on before its release is answered",
    ["1-2 a claim 7/x", "3-9 a release:x ok", "4-5 b claim 7/y"],
  ],
  [
    "an address that is given on before its claim is answered",
    ["1-9 b claim 7/y", "2-3 a claim 7/x", "4-5 a release:x ok"],
  ],
  ["an order other than that of the answers", ["1-9 a claim 7/x", "2-3 b find ok", "4-5 a find 7/x"]],
  ["a pool that was full", ["1-2 a claim fail", "3-4 a claim 7/x"]],
  ["a claim without an answer that took effect", ["1- a claim", "2-3 a find 7/x", "4-5 a release:x ok"]],
  ["a claim without an answer that took no effect", ["1- a claim", "2-3 a find ok", "4-5 b claim 7/x"]],
  [
    "a claim without an answer that took effect much later",
    ["1- a claim", "2-3 a find ok", "4-5 a find ok", "6-7 a find 7/x"],
  ],
  ["a renewal without an answer", ["1-2 a claim 7/x", "3- a claim", "4-5 a release:x fail", "6-7 a claim 7/y"]],
  ["a use without an answer", ["1-2 a claim 7/x", "3- a use:x", "4-5 a find 7/x", "6-7 a find 7/x/used"]],
  [
    "a release without an answer that took effect",
    ["1-2 a claim 7/x", "3- a release:x", "4-5 b claim 7/y", "6-7 a find ok"],
  ],
  [
    "a release without an answer that took no effect",
    ["1-2 a claim 7/x", "3- a release:x", "4-5 a find 7/x", "6-7 a release:x ok"],
  ],
  [
    "a release without an answer that took effect much later",
    ["1-2 a claim 7/x", "3- a release:x", "4-5 a find 7/x", "6-7 b claim 7/y", "8-9 a find ok"],
  ],
])("linearizable: %s", (_, lines) => {
  expect(found(...lines)).toEqual([]);
});

test.each<[string, string[], string[][]]>([
  [
    "an address that two owners hold",
    ["1-2 a claim 7/x", "3-4 b claim 7/y", "5-6 a release:x ok"],
    [["address ::7", "1-2 a claim 7/x", "3-4 b claim 7/y"]],
  ],
  [
    "two owners that get an address at the same time",
    ["1-4 a claim 7/x", "2-3 b claim 7/y", "5-6 b use:y 7/y/used", "7-8 a release:x ok"],
    [["address ::7", "1-4 a claim 7/x", "2-3 b claim 7/y"]],
  ],
  [
    "a release of an old lease id that frees the address",
    ["1-2 a claim 7/x", "3- a release:x", "4-5 a claim 7/y", "6-7 b claim 7/z"],
    [["address ::7", "4-5 a claim 7/y", "6-7 b claim 7/z", "3- a release:x"]],
  ],
  [
    "a lease that is lost",
    ["1-2 a claim 7/x", "3-4 a find 7/x", "5-6 a find ok"],
    [["owner a", "3-4 a find 7/x", "5-6 a find ok"]],
  ],
  [
    "a release that was answered with false",
    ["1-2 a claim 7/x", "3-4 a use:x 7/x/used", "5-6 a release:x fail"],
    [["owner a", "3-4 a use:x 7/x/used", "5-6 a release:x fail"]],
  ],
  [
    "a find that shows what was over before it",
    ["1-2 a claim 7/x", "3-4 a release:x ok", "5-6 a find 7/x", "7-8 a claim 8/y"],
    [
      ["owner a", "3-4 a release:x ok", "5-6 a find 7/x"],
      ["address ::7", "3-4 a release:x ok", "5-6 a find 7/x"],
    ],
  ],
  [
    "a find that shows an id from before a renewal",
    ["1-2 a claim 7/x", "3-4 a claim 7/y", "5-6 a find 7/x"],
    [
      ["owner a", "3-4 a claim 7/y", "5-6 a find 7/x"],
      ["address ::7", "3-4 a claim 7/y", "5-6 a find 7/x"],
    ],
  ],
  [
    "a release that was undone",
    ["1-2 a claim 7/x", "3-4 a release:x ok", "5-6 a find ok", "7-8 a find 7/x"],
    [
      ["owner a", "5-6 a find ok", "7-8 a find 7/x"],
      ["address ::7", "3-4 a release:x ok", "7-8 a find 7/x"],
    ],
  ],
  [
    "a lease that was never claimed",
    ["1-2 a find 7/x"],
    [
      ["owner a", "1-2 a find 7/x"],
      ["address ::7", "1-2 a find 7/x"],
    ],
  ],
  [
    "another value when it is claimed again",
    ["1-2 a claim 7/x", "3-4 a claim 8/y"],
    [["owner a", "1-2 a claim 7/x", "3-4 a claim 8/y"]],
  ],
  [
    "a full pool for an owner that has a lease",
    ["1-2 a claim 7/x", "3-4 a claim fail"],
    [["owner a", "1-2 a claim 7/x", "3-4 a claim fail"]],
  ],
  [
    "an old lease id that works",
    ["1-2 a claim 7/x", "3-4 a claim 7/y", "5-6 a release:x ok"],
    [
      ["owner a", "3-4 a claim 7/y", "5-6 a release:x ok"],
      ["address ::7", "3-4 a claim 7/y", "5-6 a release:x ok"],
    ],
  ],
  [
    "a claim without an answer, with or without effect",
    ["1- a claim", "2-3 a find 7/x", "4-5 b claim 7/y"],
    [["address ::7", "2-3 a find 7/x", "4-5 b claim 7/y", "1- a claim"]],
  ],
])("not linearizable: %s", (_, lines, expected) => {
  expect(found(...lines)).toEqual(expected);
});

test("a long history with a fault in its middle is shrunk to the fault", () => {
  const round = (i: number) => [
    `${i}.1-${i}.2 a claim 7/x${i}`,
    `${i}.3-${i}.4 a use:x${i} 7/x${i}/used`,
    `${i}.5-${i}.7 a release:x${i} ok`,
    `${i}.6- a find`,
  ];
  const rounds = Array.from({ length: 500 }, (_, i) => round(i + 1));
  rounds[250]!.push("251.25-251.45 b claim 7/y", "251.8-251.9 b release:y ok");
  expect(found(...rounds.flat())).toEqual([
    ["address ::7", "251.25-251.45 b claim 7/y", "251.3-251.4 a use:x251 7/x251/used"],
  ]);
});

/** One call of a simulated pool: what it does, how long it takes around the moment of its effect, and what is seen of it. */
const simulatedCall = fc.record({
  owner: fc.constantFrom("a", "b", "c"),
  dice: fc.nat(3),
  early: fc.nat(25),
  late: fc.nat(25),
  fate: fc.constantFrom("answered", "answered", "answered", "cut off after its effect", "cut off before its effect"),
});

test("calls of a pool that does them one after another are linearizable, however long their answers take", () => {
  const calls = fc.array(simulatedCall, { maxLength: 60 });
  fc.assert(
    fc.property(calls, (list) => {
      const leases = new Map<string, { value: string; leaseId: string; state: string }>();
      // Clients use and release only by ids that an answer has shown them.
      const shown = new Set<string>();
      const operations = list.map(({ owner, dice, early, late, fate }, i): Operation => {
        const held = leases.get(owner);
        const call = (["claim", "find", "use", "release"] as const)[held && shown.has(held.leaseId) ? dice : dice % 2]!;
        const free = ["1", "2", "3"].find((value) => ![...leases.values()].some((lease) => lease.value === value))!;
        const claimed = { value: held?.value ?? free, leaseId: `id${i}`, state: held?.state ?? "reserved" };
        const after = { claim: claimed, find: held, use: { ...held!, state: "used" }, release: undefined }[call];
        if (fate !== "cut off before its effect") after ? leases.set(owner, after) : leases.delete(owner);
        const isAnswered = fate === "answered";
        if (isAnswered && after) shown.add(after.leaseId);
        return {
          process: "p",
          owner,
          call,
          ...((call === "use" || call === "release") && { leaseId: held!.leaseId }),
          invokedAt: 10 * i - early,
          answeredAt: isAnswered ? 10 * i + late : Infinity,
          outcome: isAnswered ? { type: "ok", ...(after && { lease: after }) } : { type: "unknown" },
        };
      });
      expect(findAnomalies(operations)).toEqual([]);
    }),
    { numRuns: 500 },
  );
});

test("an anomaly is printed with its register, times, processes and answers", () => {
  const [anomaly] = findAnomalies(history("1000-2000 a claim ffff0a000007/x", "3000-4000 b claim ffff0a000007/y"));
  expect(describeAnomaly(anomaly!)).toEqual([
    "address 10.0.0.7 is not linearizable; 2 of its 2 operations:",
    "  0.000–1.000 ms  p  claim(a) → 10.0.0.7 reserved, x",
    "  2.000–3.000 ms  p  claim(b) → 10.0.0.7 reserved, y",
  ]);
});

test("ledgers become operations: refusals are failures, other errors and missing answers are unknown outcomes", () => {
  const lease = { value: "7", leaseId: "x", state: "reserved" };
  const outcomes = operationsOf("w0.000000", [
    { at: 1, answeredAt: 2, owner: "a", call: "claim", result: { got: lease } },
    { at: 1, answeredAt: 2, owner: "a", call: "claim", result: { failed: "POOL_EXHAUSTED" } },
    { at: 1, answeredAt: 2, owner: "a", call: "claim", result: { failed: "STORE_UNAVAILABLE" } },
    { at: 1, owner: "a", call: "claim" },
    { at: 1, answeredAt: 2, owner: "a", call: "release", leaseId: "x", result: { did: false } },
    { at: 1, answeredAt: 2, owner: "a", call: "release", leaseId: "x", result: { did: true } },
    { at: 1, answeredAt: 2, owner: "a", call: "find", result: { none: true } },
  ]);
  expect(outcomes.map(({ answeredAt, outcome }) => [answeredAt, outcome])).toEqual([
    [2, { type: "ok", lease }],
    [2, { type: "fail" }],
    [Infinity, { type: "unknown" }],
    [Infinity, { type: "unknown" }],
    [2, { type: "fail" }],
    [2, { type: "ok" }],
    [2, { type: "ok" }],
  ]);
});
