import { expect, test } from "vitest";
import { inBatches } from "../../../bench/engines";
import { SETTINGS } from "../../../bench/pool/adapter";
import { type Case, casesWith, contentOf, openCase, roomIn } from "../../../bench/pool/cases";
import { claimOne, findUsage } from "../../../provider/ipam/interface";
import { LocalIpam } from "../../../provider/ipam/ipam";
import { Session } from "../../../provider/ipam/session";
import { openSqlite } from "../../../provider/ipam/store/sqlite";
import type { PoolSpec } from "../../../provider/ipam/types";

async function fill(...cases: Case[]): Promise<LocalIpam> {
  const tables = await openSqlite(":memory:");
  const ipam = new LocalIpam(new Session(tables, SETTINGS));
  for (const one of cases) await openCase(ipam, one);
  for (const one of cases) await inBatches(tables, contentOf(one));
  return ipam;
}

test.each(casesWith(500))(
  "$name is filled as if by claims, and the rest can be claimed",
  { timeout: 30_000 },
  async (one) => {
    const ipam = await fill(one);
    expect(await ipam.admin.fsck()).toEqual([]);
    expect((await findUsage(ipam, one.spec.name))!.held).toBe(BigInt(one.leases));
    const more = Math.min(roomIn(one), 20);
    const claim = (_: unknown, i: number) =>
      claimOne(ipam, { pool: one.spec.name, owner: `owner ${i}`, type: "IPReservation" });
    const leases = await Promise.all(Array.from({ length: more }, claim));
    expect(new Set(leases.map(({ ranges }) => ranges[0]!.first)).size).toBe(more);
    expect(await ipam.admin.fsck()).toEqual([]);
  },
);

test("several pools of one store are filled", async () => {
  const ipam = await fill(...casesWith(50));
  expect(await ipam.admin.fsck()).toEqual([]);
});

test("a runner's subnet, which has several ranges, is filled in the largest", async () => {
  const [small, large] = [
    { first: 0xffff_0a00_0002n, last: 0xffff_0a00_00fdn },
    { first: 0xffff_0a00_00ffn, last: 0xffff_0a00_3ffen },
  ];
  const spec: PoolSpec = { name: "pool/two", kind: "address", ranges: [small, large], allocation: "random" };
  const ipam = await fill({ name: "two ranges", cidr: "", spec, leases: 1000, filled: "at random" });
  expect(await ipam.admin.fsck()).toEqual([]);
  expect((await findUsage(ipam, spec.name))!.held).toBe(1000n);
});
