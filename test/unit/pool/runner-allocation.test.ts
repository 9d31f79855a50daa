import { expect, test } from "vitest";
import { findUsage } from "../../../provider/ipam/interface";
import { createFixture, createPool, type Fixture, firstOf, memoryEngine, ranges } from "../../contract/fixture";
import vectors from "../../vectors/runner_allocation.json";

/** KohakuRiver's registrations. It marks runners inactive; here they are inactive if they were not seen for an hour. */
const HOUR = 3600;

const allocation = vectors.scenarios.filter(({ name }) => !name.startsWith("recovery"));

class Registry {
  readonly active = new Set<string>();
  constructor(readonly fixture: Fixture) {}

  async register(runner: string): Promise<bigint> {
    await this.passUnseen();
    const lease = await this.fixture.pool.claim({ pool: "network/n", owner: runner, type: "RunnerSubnet" });
    this.active.add(runner);
    return firstOf(lease);
  }

  /** An hour passes in which only the active runners send heartbeats. */
  async passUnseen(): Promise<void> {
    const leases = await this.fixture.pool.leases("network/n");
    if (leases.every(({ owner }) => this.active.has(owner))) return this.fixture.pass(1);
    this.fixture.pass(HOUR);
    for (const runner of this.active) await this.touch(runner);
    this.fixture.pass(1);
  }

  async touch(runner: string): Promise<void> {
    const lease = await this.fixture.pool.find({ pool: "network/n", owner: runner });
    await this.fixture.pool.touch("network/n", lease!.leaseId);
  }

  async release(runner: string): Promise<boolean> {
    this.active.delete(runner);
    const lease = await this.fixture.pool.find({ pool: "network/n", owner: runner });
    return lease ? this.fixture.pool.release("network/n", lease.leaseId) : false;
  }

  async list(): Promise<{ runner: string; runnerId: number }[]> {
    const leases = await this.fixture.pool.leases("network/n");
    return leases.map(({ owner, ranges }) => ({ runner: owner, runnerId: Number(ranges[0]!.first) }));
  }
}

test.each(allocation)("$name", async ({ subnet, steps }) => {
  const engine = memoryEngine();
  const registry = new Registry(await createFixture(engine, { quarantine: 0 }));
  const last = 2 ** Number(subnet.split("/")[2]) - 1;
  await createPool(registry.fixture.pool, {
    name: "network/n",
    kind: "id",
    ranges: ranges(`1-${last}`),
    reclaimAfter: HOUR,
  });
  for (const step of steps as Step[]) await play(registry, step);
  expect(await registry.fixture.pool.fsck()).toEqual([]);
});

type Step = { op: string; runner?: string; error?: string; result?: unknown };

async function play(registry: Registry, { op, runner = "", error, result }: Step): Promise<void> {
  switch (op) {
    case "register":
      if (error) return expect(registry.register(runner)).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
      return expect(await registry.register(runner)).toBe(BigInt((result as { runnerId: number }).runnerId));
    case "release":
      return expect(await registry.release(runner)).toBe(result);
    case "active":
      registry.fixture.pass(1);
      return registry.touch(runner);
    case "inactive":
      registry.active.delete(runner);
      return;
    case "cleanupInactive": {
      const gone = (await registry.list()).filter((lease) => !registry.active.has(lease.runner));
      for (const lease of gone) await registry.release(lease.runner);
      return expect(gone.length).toBe(result);
    }
    case "stats": {
      const { total_allocations, max_runners } = result as { total_allocations: number; max_runners: number };
      const usage = await findUsage(registry.fixture.pool, "network/n");
      return expect(usage).toMatchObject({ capacity: BigInt(max_runners), held: BigInt(total_allocations) });
    }
    case "list": {
      const expected = (result as { runner: string; runnerId: number }[]).map(({ runner, runnerId }) => ({
        runner,
        runnerId,
      }));
      return expect(await registry.list()).toEqual(expected.sort((a, b) => a.runnerId - b.runnerId));
    }
    default:
      throw new Error(`unknown step ${op}`);
  }
}
