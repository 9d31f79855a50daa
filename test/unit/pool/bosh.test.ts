import { describe, expect, test } from "vitest";
import { formatIp } from "../../../provider/addressing/ip";
import { mergeRanges } from "../../../provider/ipam/ranges";
import type { ValueRange } from "../../../provider/ipam/types";
import type { Pool } from "../../contract/fixture";
import {
  by,
  createFixture,
  createPool,
  memoryEngine,
  range as rangeOf,
  ranges,
  requestFor,
} from "../../contract/fixture";
import vectors from "../../vectors/bosh_ip_provider.json";

const engine = memoryEngine();
const fresh = async () => (await createFixture(engine, { quarantine: 0 })).pool;

interface Subnet {
  range: string;
  gateway: string;
  reserved?: string[];
  static?: string[];
  prefix?: string;
}

const range = (text: string): ValueRange => rangeOf(text.replaceAll(" ", ""));

/** BOSH's manual network: network, gateway and broadcast are never given out; an IPv6 range has its last one too. */
function specOf({ range: cidr, gateway, reserved = [], static: fixed = [] }: Subnet) {
  const all = range(cidr);
  const last = { first: all.last, last: all.last };
  const taken = mergeRanges([{ first: all.first, last: all.first }, range(gateway), last, ...reserved.map(range)]);
  return { ranges: [all], reserved: taken, staticOnly: fixed.map(range) };
}

const text = (
  { first, last }: ValueRange,
  bits = first === last ? 0 : (last - first + 1n).toString(2).length - 1,
): string => `${formatIp(first)}/${(formatIp(first).includes(":") ? 128 : 32) - bits}`;

async function allocate(pool: Pool, owner: string, { prefix, range: cidr }: Subnet): Promise<string | null> {
  const width = cidr.includes(":") ? 128 : 32;
  const size = prefix ? { size: 1n << BigInt(width - Number(prefix)) } : {};
  try {
    return text((await pool.claim(by(owner, size))).ranges[0]!);
  } catch (error) {
    expect(error).toMatchObject({ code: "POOL_EXHAUSTED" });
    return null;
  }
}

describe("allocation", () => {
  test.each(vectors.allocate)("$name", async ({ steps }) => {
    const pool = await fresh();
    const { subnet } = steps.find((step) => "subnet" in step) as { subnet: Subnet };
    await createPool(pool, specOf(subnet));
    for (const [i, step] of steps.entries()) {
      // Values that BOSH finds taken are in reserved ranges, which our pool never gives.
      if (step.op === "allocate") expect(await allocate(pool, `i${i}`, step.subnet as Subnet)).toBe(step.expect);
    }
    expect(await pool.fsck()).toEqual([]);
  });

  test.each(vectors.races)("$name", async ({ subnet, rivalTakesOnWrite, expect: expected }) => {
    const pool = await fresh();
    await createPool(pool, specOf(subnet));
    const rivals = rivalTakesOnWrite.map((ip) => pool.claim(requestFor(`rival for ${ip}`, ip)));
    const ours = allocate(pool, "ours", subnet);
    await Promise.all(rivals);
    expect(await ours).toBe(expected);
  });

  test.each(vectors.reservable)(
    "$ip in $range is reservable: $reservable",
    async ({ ip, range: cidr, gateway, reserved, reservable }) => {
      const pool = await fresh();
      // BOSH rounds 192.168.0.1/24 down to its network.
      await createPool(pool, specOf({ range: cidr.replace("0.1/24", "0.0/24"), gateway, reserved }));
      const claim = pool.claim(requestFor("i", ip));
      if (reservable) await claim;
      else await expect(claim).rejects.toMatchObject({ code: expect.stringMatching(/IP_RESERVED|IP_OUTSIDE_POOL/) });
    },
  );

  test.each(vectors.subnetOverlap)("$a and $b overlap: $overlaps", async ({ a, b }) => {
    const pool = await fresh();
    await createPool(pool, { name: "pool/a", ranges: ranges(a) });
    await createPool(pool, { name: "pool/b", ranges: ranges(b) });
    await expect(createPool(pool, { name: "pool/c", ranges: ranges(a) })).rejects.toMatchObject({
      code: "PLAN_STALE",
    });
  });
});

describe("ownership and life cycles", () => {
  const lan = specOf({ range: "192.168.1.0/24", gateway: "192.168.1.1" });
  const name = (index: number) => vectors.lifeCycle[index]!.name;
  const ip = async (claim: ReturnType<Pool["claim"]>) => formatIp((await claim).ranges[0]!.first);

  test(name(0), async () => {
    const pool = await fresh();
    await createPool(pool, lan);
    expect([await ip(pool.claim(by("A"))), await ip(pool.claim(by("B")))]).toEqual(["192.168.1.2", "192.168.1.3"]);
  });

  test(`${name(1)}; ${name(2)}`, async () => {
    const pool = await fresh();
    await createPool(pool, lan);
    const held = await pool.claim(requestFor("A", "192.168.1.10"));
    await expect(pool.claim(requestFor("B", "192.168.1.10"))).rejects.toMatchObject({ code: "PLAN_STALE" });
    await pool.release("pool/p", held.leaseId);
    expect(await ip(pool.claim(requestFor("B", "192.168.1.10")))).toBe("192.168.1.10");
  });

  test(`${name(3)}; ${name(4)}`, async () => {
    const pool = await fresh();
    const opener = await createPool(pool, { ...lan, reserved: ranges("192.168.1.0-192.168.1.2") });
    expect(await ip(pool.claim(by("A")))).toBe("192.168.1.3");
    const respec = { name: "pool/p", kind: "address" as const, allocation: "lowest" as const, ranges: lan.ranges };
    await pool.change("space/address", opener.leaseId, {
      childPool: { ...respec, reserved: ranges("192.168.1.0", "192.168.1.15") },
    });
    expect(await ip(pool.claim(by("A")))).toBe("192.168.1.3");
    expect(await ip(pool.claim(by("A2")))).toBe("192.168.1.1");
    await expect(pool.claim(requestFor("B", "192.168.1.3"))).rejects.toMatchObject({ code: "PLAN_STALE" });
  });

  test(name(6), async () => {
    const pool = await fresh();
    await createPool(pool, lan);
    expect(await ip(pool.claim(by("A")))).toBe("192.168.1.2");
    expect(await ip(pool.claim(by("B")))).toBe("192.168.1.3");
    expect(await ip(pool.claim(by("A")))).toBe("192.168.1.2");
  });

  test("a reservation asked for statically after it was given dynamically is the same one", async () => {
    const pool = await fresh();
    await createPool(pool, lan);
    const lease = await pool.claim(by("i1"));
    expect((await pool.claim(requestFor("i1", "192.168.1.2"))).uid).toBe(lease.uid);
  });

  test("the release of something that is not reserved does nothing", async () => {
    const pool = await fresh();
    expect(await pool.release("pool/none", "0123.4567")).toBe(false);
  });
});
