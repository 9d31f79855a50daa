import { expect, test } from "vitest";
import { formatIp, parseIp, tryParseIp } from "../../../provider/addressing/ip";
import { findUsage } from "../../../provider/ipam/interface";
import type { Lease } from "../../../provider/ipam/types";
import { createFixture, createPool, type Fixture, memoryEngine, ranges } from "../../contract/fixture";
import vectors from "../../vectors/reservation_lifecycle.json";

/**
 * KohakuRiver's reservations, replayed on leases; a token stands for its lease id. Intended differences: the total of
 * `info`, which counts the hub's address as free, and addresses that are not written in the canonical form,
 * which never reach the pool.
 */
const poolOf = (runner: string) => `runner/n/${runner}`;

class Reservations {
  readonly tokens = new Map<string, Lease>();
  #owners = 0;
  constructor(
    readonly fixture: Fixture,
    readonly runners: string[],
  ) {}

  async reserve({ runner, ip, ttl, as }: Step): Promise<string | null> {
    const values = ip === undefined ? {} : { values: [{ first: parseIp(ip), last: parseIp(ip) }] };
    const owner = `job ${this.#owners++}`;
    return this.#claim({ pool: poolOf(runner!), owner, type: "IPReservation", ttl: ttl || 300, ...values }, as);
  }

  async markUsed({ runner, ip, container }: Step): Promise<void> {
    const values = ranges(ip!);
    await this.#claim({
      pool: poolOf(runner!),
      owner: `container ${container}`,
      type: "IPReservation",
      values,
      usedBy: container!,
    });
  }

  async #claim(request: Parameters<Fixture["pool"]["claim"]>[0], as?: string): Promise<string | null> {
    try {
      const lease = await this.fixture.pool.claim(request);
      if (as) this.tokens.set(as, lease);
      return formatIp(lease.ranges[0]!.first);
    } catch (error) {
      expect(["PLAN_STALE", "IP_RESERVED", "IP_OUTSIDE_POOL", "POOL_NOT_FOUND"]).toContain(
        (error as { code: string }).code,
      );
      return null;
    }
  }

  /** The lease of a token that was not used yet. */
  async unused({ token, expectedRunner }: Step): Promise<Lease | undefined> {
    const { pool = "", leaseId = "" } = this.tokens.get(token!) ?? {};
    const lease = await this.fixture.pool.find({ pool, leaseId });
    return lease?.state === "reserved" && (!expectedRunner || pool === poolOf(expectedRunner)) ? lease : undefined;
  }

  async all(): Promise<Lease[]> {
    const lists = await Promise.all(this.runners.map((runner) => this.fixture.pool.leases(poolOf(runner))));
    return lists.flat();
  }
}

const SUBNETS: Record<string, string> = {
  node1: "10.128.64.2-10.128.127.253",
  node2: "10.128.128.2-10.128.191.253",
};

test.each(vectors.scenarios)("$name", async ({ steps, runners }) => {
  const engine = memoryEngine();
  const names = Object.keys(runners);
  const reservations = new Reservations(await createFixture(engine, { quarantine: 0 }), names);
  for (const name of names) {
    const reserved = ranges(name === "node1" ? "10.128.64.254" : "10.128.128.254");
    await createPool(reservations.fixture.pool, { name: poolOf(name), ranges: ranges(SUBNETS[name]!), reserved });
  }
  for (const step of steps as Step[]) await play(reservations, step);
  expect(await reservations.fixture.pool.fsck()).toEqual([]);
});

interface Step {
  op: string;
  result?: unknown;
  as?: string;
  token?: string;
  runner?: string;
  expectedRunner?: string;
  ip?: string;
  ttl?: number;
  container?: string;
  seconds?: number;
}

const ipOf = (lease: Lease | undefined) => (lease ? formatIp(lease.ranges[0]!.first) : null);

async function play(reservations: Reservations, step: Step): Promise<void> {
  const { pool, pass, another } = reservations.fixture;
  switch (step.op) {
    case "reserve": {
      if (step.ip !== undefined && tryParseIp(step.ip) === undefined) return expect(step.result).toBeNull();
      const expected = step.result as { ip: string } | null;
      return expect(await reservations.reserve(step)).toBe(expected ? expected.ip : null);
    }
    case "validate":
      return expect(ipOf(await reservations.unused(step))).toBe(step.result);
    case "use": {
      const lease = await reservations.unused(step);
      const used = lease && (await pool.change(lease.pool, lease.leaseId, { state: "used", usedBy: step.container! }));
      return expect(ipOf(used)).toBe(step.result);
    }
    case "releaseToken": {
      const lease = await reservations.unused(step);
      return expect(lease ? await pool.release(lease.pool, lease.leaseId) : false).toBe(step.result);
    }
    case "releaseContainer": {
      const leases = (await reservations.all()).filter(({ usedBy }) => usedBy === step.container);
      for (const { pool: name, leaseId } of leases) await pool.release(name, leaseId);
      return expect(leases.map(ipOf)).toEqual(step.result);
    }
    case "markUsed":
      return reservations.markUsed(step);
    case "markFree": {
      const lease = await pool.find({ pool: poolOf(step.runner!), value: parseIp(step.ip!) });
      return expect(await pool.release(lease!.pool, lease!.leaseId)).toBe(true);
    }
    case "advance":
      return pass(step.seconds!);
    case "available": {
      const offer = await another().offer({
        pool: poolOf(step.runner!),
        owner: "probe",
        type: "IPReservation",
        program: "main",
      });
      await pool.withdraw({ pool: offer.pool, owner: "probe", program: "main" });
      return expect({ [step.runner!]: [ipOf(offer)] }).toEqual(step.result);
    }
    case "info": {
      const { reserved, used } = step.result as { reserved: number; used: number };
      return expect(await findUsage(pool, poolOf(step.runner!))).toMatchObject({ reserved, used });
    }
    case "list": {
      const facts = (await reservations.all()).map((lease) => ({
        ip: ipOf(lease),
        runner: lease.pool.split("/")[2],
        used: lease.state === "used",
        container: lease.usedBy ?? null,
      }));
      // There, an address that was marked used without a reservation is no reservation.
      const listed = step.result as { ip: string }[];
      return expect(facts.filter(({ ip, container }) => container !== "x" || listed.some((l) => l.ip === ip))).toEqual(
        listed,
      );
    }
    case "stats": {
      const { pending_reservations, in_use_reservations } = step.result as Record<string, number>;
      const states = (await reservations.all()).map(({ state }) => state);
      expect(states.filter((state) => state === "reserved")).toHaveLength(pending_reservations!);
      return expect(states.filter((state) => state === "used")).toHaveLength(in_use_reservations!);
    }
    case "cleanup":
      return;
    default:
      throw new Error(`unknown step ${step.op}`);
  }
}
