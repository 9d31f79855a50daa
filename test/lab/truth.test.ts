import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { LabDocker } from "../../lab/docker";
import { Lab } from "../../lab/lab";
import type { Host } from "../../provider/host/connection";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../../provider/host/reconcile/requests";
import { formatDifference } from "../../provider/network/kinds";
import { type Item, itemKey } from "../../provider/network/model/items";
import { labHost, must } from "./lab-stack";
import { FAULTS, KINDS, type Kind } from "./truth-cases";

/** Every kind of item with every fault on a real kernel: what refresh names, what up and delete do, and what stays. */
let lab: Lab;
let docker: LabDocker;
/** The host of the kind that is tried. */
let name: string;
let before: string;

const host = (): Host => labHost(lab, name);
const sh = (script: string): Promise<string> => must(lab, name, script);
/** Without chains that are empty: iptables-save lists a table's own ones once it was used. */
const state = () =>
  sh(
    "ip -o link; ip -4 -o addr; ip route; ip rule; iptables-save | grep -v '^[#:*]\\|COMMIT' || :; ls /etc/overlay-* /var/lib/overlay 2>/dev/null || :",
  );

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  docker = new LabDocker(lab);
});
afterAll(async () => {
  await lab?.down();
});
/** Each case leaves the host as it was. */
afterEach(async () => {
  expect(await state()).toBe(before);
});

const request = (items: Item[]): ApplyRequest => ({
  record: { uid: "truth", owner: "truth", network: "training", store: "s" },
  items,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
});
const refusal = (pattern: RegExp): RegExp => new RegExp(pattern.source.replace(/^\^/, "^OverlayError: "));
const up = (items: Item[]) => new Reconciler().apply(host(), request(items));
const refused = async (items: Item[], pattern: RegExp) =>
  expect(String(await up(items).catch(String))).toMatch(refusal(pattern));
async function refresh(items: Item[]): Promise<string[]> {
  const { differences, foreign } = await new Reconciler().inspect(host(), request(items));
  return [...foreign, ...differences.map(formatDifference)];
}

const CASES = Object.entries(KINDS).flatMap(([name, kind]) =>
  typeof kind === "string" ? [] : [{ name, kind: kind as Kind<Item>, all: [...kind.needs, kind.item] }],
);

describe.each(CASES)("$name", ({ kind, all }) => {
  const { needs, item, look, twin, notRemovable } = kind;

  beforeAll(async () => {
    name = kind.host ?? "hub";
    if (kind.host) expect(await docker.findObstacle(kind.host)).toBeUndefined();
    before = await state();
  });
  afterAll(async () => {
    if (kind.host) await docker.stop(kind.host);
  });

  if (typeof twin !== "string")
    test("create beside an object of another program", async () => {
      await sh(twin.make);
      if (twin.refused) {
        const theirs = await sh(look);
        await refused(all, twin.refused);
        expect(await sh(look)).toBe(theirs);
      } else {
        await up(all);
        expect(await refresh(all)).toEqual([]);
      }
      await up([]);
      await sh(twin.undo);
    });

  for (const fault of FAULTS) {
    const truth = kind.faults[fault];
    if (typeof truth === "string") continue;
    test(`${fault}: refresh, up, delete`, async () => {
      await up(all);
      const made = await sh(look);
      await sh(truth.spoil);
      expect(await refresh(all)).toEqual(truth.refresh);
      if (truth.refused) {
        await refused(all, truth.refused);
        await sh(truth.undo ?? ":");
      }
      await up(all);
      expect(await refresh(all)).toEqual(truth.refused ? [] : (truth.remains ?? []));
      if (!truth.refused) await sh(truth.undo ?? ":");
      expect(await sh(look)).toBe(made);

      await sh(truth.spoil);
      if (truth.kept) {
        await refused([], truth.kept);
        await sh(truth.undo ?? ":");
      }
      await up([]);
      if (truth.stays !== undefined) expect(await sh(look)).toBe(truth.stays);
      if (!truth.kept) await sh(truth.undo ?? ":");
    });
  }

  if (typeof notRemovable !== "string")
    test("not removable: update and delete fail, refresh names it, and the next up removes it", async () => {
      const { name: program, calls } = notRemovable;
      const tool = `/usr/local/sbin/${program}`;
      const breakTool = async () => {
        const real = await sh(`command -v ${program}`);
        await sh(
          `printf '%s\\n' '#!/bin/sh' 'case "$*" in ${calls.replaceAll(" ", "\\ ")}) cat >/dev/null; exit 1 ;; esac' 'exec ${real} "$@"' >${tool}; chmod +x ${tool}`,
        );
      };
      const left = `${itemKey(item)}: still there`;
      for (const later of [needs, []]) {
        await up(all);
        await breakTool();
        await refused(later, new RegExp(`^HOST_COMMAND_FAILED: ${name}: `));
        expect(await sh(look)).not.toBe("");
        await sh(`rm ${tool}`);
        if (later.length > 0) expect(await refresh(later)).toContain(`${left}, should be removed`);
        await up(later);
        expect(await refresh(later)).toEqual([]);
      }
      await up([]);
    });
});
