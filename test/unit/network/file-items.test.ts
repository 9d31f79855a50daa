import { expect, test } from "vitest";
import { planSteps } from "../../../provider/network/diff/steps";
import { diffItems, factsWithout, formatDifference } from "../../../provider/network/kinds";
import { sha256 } from "../../../provider/network/kinds/file";
import type { Facts } from "../../../provider/network/model/facts";
import { type DesiredState, type Item, itemKey } from "../../../provider/network/model/items";
import { BOOT_SCRIPT, isInvalidRecord, parseRecord } from "../../../provider/network/model/record";
import { renderBootScript } from "../../../provider/network/plan/boot";
import { refuseForeign } from "../../../provider/network/preflight/foreign";
import { inspectScript, parseFacts, preflightScript } from "../../../provider/network/read/facts";

/** Files that a plan names, beside the scripts for boot. */
const PATH = "/etc/systemd/resolved.conf.d/overlay-training.conf";
const file: Item = { kind: "file", path: PATH, content: "[Resolve]\n" };
const recorded: Item = { kind: "file", path: PATH };
const desired = (uid: string, items: Item[], more: Partial<DesiredState> = {}): DesiredState => ({
  record: { uid, owner: uid, network: "training", store: "s" },
  items,
  ...more,
});

/** A host with these records, and with this content of the file. */
const hostWith = (content: string | undefined, owners: string[] = []): Facts => ({
  ...parseFacts(content === undefined ? "" : `@@ files\n${sha256(content)}  ${PATH}\n`),
  records: owners.map((uid) => ({ ...desired(uid, []).record, items: [recorded] })),
});

const verbs = (state: DesiredState, facts: Facts): string[] =>
  planSteps([state], facts).map(({ verb, item }) => `${verb} ${itemKey(item)}`);

test.each<[state: string, content: string | undefined, drift: string[], steps: string[]]>([
  ["is absent", undefined, [`file ${PATH}: missing`], [`add file ${PATH}`]],
  ["was edited", "other", [`file ${PATH}: its content is not the planned one`], [`change file ${PATH}`]],
  ["is as planned", "[Resolve]\n", [], []],
])("a file that %s", (_, content, drift, steps) => {
  const facts = hostWith(content, ["r1"]);
  expect(diffItems([file], facts).map(formatDifference)).toEqual(drift);
  expect(verbs(desired("r1", [file]), facts)).toEqual(steps);
});

test.each<[who: string, state: DesiredState]>([
  ["an owner that no longer plans it", desired("r1", [{ kind: "file", path: BOOT_SCRIPT, content: "" }])],
  ["an owner that is removed", desired("r1", [])],
])("the file of %s is removed", (_, state) => {
  expect(verbs(state, hostWith("edited", ["r1"]))).toContain(`remove file ${PATH}`);
});

test("without a record, a removal takes the file only if it has the planned content", () => {
  const removal = desired("r1", [], { plannedItems: [file] });
  expect(verbs(removal, hostWith("[Resolve]\n"))).toEqual([`remove file ${PATH}`]);
  expect(verbs(removal, hostWith("other"))).toEqual([]);
});

test.each<[whose: string, facts: Facts, refused: string | undefined]>([
  [
    "another program's",
    hostWith("other"),
    `FILE_FOREIGN: There is already a file ${PATH}, and it is not in our records.`,
  ],
  [
    "another owner's",
    hostWith("[Resolve]\n", ["r2"]),
    `FILE_FOREIGN: There is already a file ${PATH}, and it belongs to r2`,
  ],
  ["the planned one, without a record", hostWith("[Resolve]\n"), undefined],
  ["its own, edited", hostWith("edited", ["r1"]), undefined],
])("a file that exists and is %s", (_, facts, refused) => {
  const apply = () => refuseForeign(desired("r1", [file]), facts);
  if (refused) expect(apply).toThrow(refused);
  else expect(apply).not.toThrow();
});

test("both scripts read the files of requests and of records", () => {
  for (const script of [inspectScript([desired("r1", [file])]), preflightScript([desired("r1", [file])])]) {
    expect(script).toMatch(new RegExp(`^set -- .*'${PATH}' .*; echo '@@ files'; sha256sum "\\$@"`, "m"));
    expect(script).toContain("grep -aFhs");
  }
  expect(inspectScript([desired("r1", [], { plannedItems: [file] })])).toContain(PATH);
});

test("a file is on disk: the script for boot does not write it", () => {
  expect(renderBootScript("training", [file])).toBe(renderBootScript("training", []));
});

test("a dry run sees the host without a file that was removed", () => {
  expect(factsWithout([file], hostWith("other")).files.has(PATH)).toBe(false);
});

test.each([
  [PATH, true],
  ["/etc/overlay-dns", true],
  ["/etc/passwd", false],
  ["/etc/../etc/overlay-x", false],
  ["/etc/x/../overlay-x", false],
  ["/root/overlay-x", false],
  ["/etc/overlay-x y", false],
  ["/etc/overlay-$(reboot)", false],
  ["/etc/systemd/system/overlay-network.service", false],
  ["/etc/systemd/system/multi-user.target.wants/overlay-network.service", false],
  ["/etc/systemd/system/overlay-network-reload.service.d/overlay-x.conf", false],
  ["/etc/systemd/system/overlay-network-dns.service", true],
])("a record may list %s: %s", (path, isValid) => {
  const record = { ...desired("r1", []).record, items: [{ kind: "file", path }] };
  const parsed = parseRecord("/var/lib/overlay/training/r1.json", JSON.stringify(record));
  expect(isInvalidRecord(parsed)).toBe(!isValid);
});
