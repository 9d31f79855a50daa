import { describe, expect, test } from "vitest";
import { formatIp } from "../../../provider/addressing/ip";
import { findSpec } from "../../../provider/ipam/interface";
import { covers } from "../../../provider/ipam/ranges";
import type { Lease, Port, Request } from "../../../provider/ipam/types";
import type { Pool } from "../../contract/fixture";
import { createFixture, createPool, memoryEngine, range, ranges } from "../../contract/fixture";
import vectors from "../../vectors/metallb_allocator.json";

/**
 * MetalLB's allocator, replayed on leases. Its backend key is part of the sharing key; namespaces, selectors and overlapping pools
 * do not exist here: those of TestPoolAllocation all become one.
 */
interface Step {
  op: string;
  service?: string;
  ips?: string[];
  error?: string | null;
  ports?: string[];
  sharingKey?: string;
  backendKey?: string;
  family?: string;
  pool?: string;
  pools?: Record<string, { cidr: string[]; avoidBuggyIPs: boolean; namespaces?: string[]; selectors?: string }>;
  svc?: { namespace: string; labels: unknown };
}

class Allocator {
  pools: string[] = [];
  constructor(readonly pool: Pool) {}

  async setPools(pools: NonNullable<Step["pools"]>): Promise<void> {
    const cidrs = new Set<string>();
    for (const [name, { cidr, avoidBuggyIPs, namespaces, selectors }] of Object.entries(pools)) {
      if (namespaces || selectors || cidr.some((text) => cidrs.has(text))) continue;
      for (const text of cidr) cidrs.add(text);
      await createPool(this.pool, { name, ranges: ranges(...cidr), avoidBoundaryIps: avoidBuggyIPs });
      this.pools.push(name);
    }
  }

  request(pool: string, { service, sharingKey, backendKey, ports = [] }: Step): Request {
    const shared = sharingKey ? { sharingKey: `${sharingKey} ${backendKey}` } : {};
    const list = ports.map(
      (text): Port => ({ protocol: text.split("/")[0] as Port["protocol"], port: Number(text.split("/")[1]) }),
    );
    return {
      pool,
      owner: service!,
      type: "StaticIP",
      onPortConflict: "anotherAddress",
      ...shared,
      ...(list.length && { ports: list }),
    };
  }

  /** A service has one assignment: a new one replaces it. */
  async replaceWith(service: string, claim: () => Promise<Lease>): Promise<Lease> {
    const before = await this.held(service);
    const lease = await claim();
    for (const old of before) if (old.uid !== lease.uid) await this.pool.release(old.pool, old.leaseId);
    return lease;
  }

  async assign(step: Step): Promise<Lease> {
    const values = ranges(...step.ips!);
    for (const name of this.pools) {
      const spec = await findSpec(this.pool, name);
      if (covers(spec!.ranges, values))
        return this.replaceWith(step.service!, () => this.pool.claim({ ...this.request(name, step), values }));
    }
    throw new Error("no pool has it");
  }

  async allocate(step: Step, pools: string[]): Promise<Lease> {
    const [v4, v6] = [range("0.0.0.0/0"), { first: 1n << 48n, last: (1n << 128n) - 1n }];
    const family = { ipv4: { range: v4 }, ipv6: { range: v6 }, dual: { range: v4, secondRange: [v6] } }[step.family!]!;
    let last: unknown;
    for (const name of pools) {
      try {
        return await this.pool.claim({ ...this.request(name, step), ...family });
      } catch (error) {
        last = error;
      }
    }
    throw last;
  }

  async held(service: string): Promise<Lease[]> {
    const found = await Promise.all(this.pools.map((pool) => this.pool.find({ pool, owner: service })));
    return found.filter((lease) => lease !== undefined);
  }

  async unassign(service: string): Promise<void> {
    for (const { pool, leaseId } of await this.held(service)) await this.pool.release(pool, leaseId);
  }
}

const ipsOf = ({ ranges }: Lease) => ranges.map(({ first }) => formatIp(first));

async function play(allocator: Allocator, step: Step, exact: boolean): Promise<void> {
  if (step.op === "setPools") return allocator.setPools(step.pools!);
  if (step.op === "unassign") return allocator.unassign(step.service!);
  const target = step.pool && !allocator.pools.includes(step.pool) && step.pool.startsWith("test") ? "test" : step.pool;
  const made =
    step.op === "assign" ? allocator.assign(step) : allocator.allocate(step, target ? [target] : allocator.pools);
  if (step.error) return expect(made).rejects.toBeInstanceOf(Error);
  const ips = ipsOf(await made);
  if (exact) expect(ips, JSON.stringify(step)).toEqual(step.ips);
  else expect(ips).toHaveLength(step.ips!.length);
}

/** Tests of namespaces, or of a request for another family than the service has. */
const isForeign = ({ svc, error, pool }: Step): boolean =>
  Boolean(svc?.namespace || svc?.labels) ||
  Boolean(error?.startsWith("IP for wrong family")) ||
  pool === "test-dualstack";

describe("MetalLB's sequences", () => {
  test.each(vectors.sequences)("$test", async ({ test: name, steps }) => {
    const engine = memoryEngine();
    const { pool } = await createFixture(engine, { quarantine: 0 });
    const allocator = new Allocator(pool);
    const exact = name === "TestAssignment" || name === "TestPoolAllocation";
    // Pools in use cannot be removed; a reload is a change of each pool's own resource.
    const played = (steps as Step[]).filter((step, i) => !isForeign(step) && !(step.op === "setPools" && i > 0));
    for (const step of played) await play(allocator, step, exact);
    expect(await pool.fsck()).toEqual([]);
  });
});
