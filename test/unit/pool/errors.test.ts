import { describe, expect, test } from "vitest";
import type { Lease, Port, Request } from "../../../provider/ipam/types";
import {
  by,
  createFixture,
  createPool,
  type Fixture,
  memoryEngine,
  network,
  ranges,
  requestFor,
  runner,
} from "../../contract/fixture";

/** The sentence of each refusal and warning of the pool, once. Other tests compare codes and names. */
const inStack = (stack: string, name: string) =>
  `scope/urn:pulumi:${stack}::project::overlay:index:IPReservation::${name}`;
const [n, r, x] = [inStack("dev", "n"), inStack("dev", "r"), inStack("prod", "x")];
const ADDRESSES = { ranges: ranges("10.0.0.0/24") };
const IDS = { ranges: ranges("1-9"), kind: "id" as const };
const WEB: Partial<Request> = { sharingKey: "web", ports: [{ protocol: "tcp", port: 80 }] };
const ACME = { org: "acme", project: "shop" };

type Act = (fixture: Fixture) => Promise<unknown>;
const REFUSALS: [what: string, act: Act, message: string][] = [
  [
    "an address that is held",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      await pool.claim(requestFor("a", "10.0.0.5"));
      await pool.offer(requestFor("b", "10.0.0.5"));
    },
    "IP_IN_USE: Address 10.0.0.5 of IPPool p is reserved by a. Request another value, or release that one first.",
  ],
  [
    "a value that is promised",
    async ({ pool }) => {
      await createPool(pool, IDS);
      await pool.offer(requestFor("a", "5"));
      await pool.offer(requestFor("b", "5"));
    },
    "RUNNER_ID_TAKEN: Runner id 5 of IPPool p is promised to a. Request another value, or wait: the promise of the preview ends at 2030-01-01T01:00:00Z unless an up claims it first.",
  ],
  [
    "a port number that is held",
    async ({ pool }) => {
      await createPool(pool, { ranges: ranges("30000-30001"), kind: "port" });
      await pool.claim(requestFor("a", "30000"));
      await pool.offer(requestFor("b", "30000"));
    },
    "PORT_CONFLICT: Port 30000 of IPPool p is reserved by a. Request another value, or release that one first.",
  ],
  [
    "a range that overlaps a held one",
    async ({ pool }) => {
      await pool.claim({ ...network("a", "10.128.0.0/12"), values: ranges("10.128.0.0/12", "fd00::/48") });
      await pool.offer(network("b", "10.0.0.0/8"));
    },
    "POOL_OVERLAP: 10.0.0.0/8 overlaps 10.128.0.0/12, fd00::/48, which is held by network a for network a. Request another range, or release that one first.",
  ],
  [
    "a range that overlaps a promised one",
    async ({ pool }) => {
      await pool.offer(network("a", "10.144.0.0/12"));
      await pool.offer(network("b", "10.144.0.0/12"));
    },
    "POOL_OVERLAP: 10.144.0.0/12 overlaps 10.144.0.0/12, which is promised to network a for network a. Request another value, or wait: the promise of the preview ends at 2030-01-01T01:00:00Z unless an up claims it first.",
  ],
  [
    "a value that another resource of the stack keeps",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      const held = await pool.claim(requestFor(n, "10.0.0.5"));
      await pool.markKept(held);
      await pool.offer(requestFor(r, "10.0.0.5"));
    },
    `IP_IN_USE: Address 10.0.0.5 of IPPool p is reserved by ${n}. Request another value. If that resource is this one under its old name, set \`aliases\`. If it is to be removed, remove it in an earlier up. If it gets another value in this up, set that value explicitly, and declare it before the program's first \`await\`.`,
  ],
  [
    "a claim of a value that is held",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      await pool.claim(requestFor("a", "10.0.0.5"));
      await pool.claim(requestFor("b", "10.0.0.5"));
    },
    "PLAN_STALE: Address 10.0.0.5 of IPPool p is reserved by a now. Run up again: it will plan with what is free now.",
  ],
  [
    "a claim of a value that is promised",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      await pool.offer(requestFor("a", "10.0.0.5"));
      await pool.claim(requestFor("b", "10.0.0.5"));
    },
    "PLAN_STALE: Address 10.0.0.5 of IPPool p is promised to a now. Run up again: it will plan with what is free now.",
  ],
  [
    "a claim of a value that another resource of the stack keeps",
    async ({ pool, another }) => {
      await createPool(pool, ADDRESSES);
      await pool.claim(requestFor(n, "10.0.0.5"));
      await another().claim(requestFor(r, "10.0.0.5"));
    },
    `PLAN_STALE: Address 10.0.0.5 of IPPool p is reserved by ${n} now. Request another value. If that resource is this one under its old name, set \`aliases\`. If it is to be removed, remove it in an earlier up. If it gets another value in this up, set that value explicitly, and declare it before the program's first \`await\`.`,
  ],
  [
    "a promise that another owner holds now",
    async ({ pool, another, pass }) => {
      await createPool(pool, IDS);
      await pool.offer(by(n));
      pass(3601);
      await another().claim(requestFor(x, "1"));
      await another().offer(by(n), { inUp: true });
    },
    `PLAN_STALE: Runner id 1 of IPPool p was promised to IPReservation n at 2030-01-01T00:00:00Z and is now reserved by ${x}. Run preview, or up without --skip-preview, to see what is given instead.`,
  ],
  [
    "a promise that the pool gives no longer",
    async ({ pool, another }) => {
      const opener = await createPool(pool, IDS);
      await pool.offer(by(n));
      const childPool = { name: "pool/p", allocation: "lowest" as const, ...IDS, reserved: ranges("1") };
      await another().change(opener.pool, opener.leaseId, { childPool });
      await another().offer(by(n), { inUp: true });
    },
    "PLAN_STALE: Runner id 1 of IPPool p was promised to IPReservation n at 2030-01-01T00:00:00Z and is no longer given out by the pool. Run preview, or up without --skip-preview, to see what is given instead.",
  ],
  [
    "a value outside of the pool",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      await pool.offer(requestFor("a", "10.0.1.9"));
    },
    "IP_OUTSIDE_POOL: Address 10.0.1.9 is not in IPPool p (10.0.0.0/24). Request one inside it.",
  ],
  [
    "a reserved value",
    async ({ pool }) => {
      await createPool(pool, { ...ADDRESSES, reserved: ranges("10.0.0.1") });
      await pool.offer(requestFor("a", "10.0.0.1"));
    },
    "IP_RESERVED: Address 10.0.0.1 of IPPool p is reserved and never given out. Request another value.",
  ],
  [
    "no value in a pool that gives only requested ones",
    async ({ pool }) => {
      await createPool(pool, { ...ADDRESSES, autoAssign: false });
      await pool.offer(by("a"));
    },
    "IP_NOT_REQUESTED: IPPool p gives only values that are requested explicitly. Set the address that you need.",
  ],
  [
    "a block in a pool that avoids .0 and .255",
    async ({ pool }) => {
      await createPool(pool, { ...ADDRESSES, avoidBoundaryIps: true });
      await pool.offer(by("a", { size: 4n }));
    },
    "IP_RESERVED: IPPool p avoids .0 and .255 (avoidBoundaryIps), so no block can be carved from it. Set avoidBoundaryIps on the pools that are carved from it instead.",
  ],
  [
    "a full pool",
    async ({ pool, pass }) => {
      await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.2") });
      await pool.claim(by("a"));
      pass(60);
      await pool.offer(by("b"));
      await pool.offer(by("c"));
    },
    "POOL_EXHAUSTED: No address is free in IPPool p (10.0.0.1-10.0.0.2). Holders, longest unseen first: 10.0.0.1 a (last seen 2030-01-01T00:00:00Z); 10.0.0.2 b (promised in a preview). Release what is no longer needed, or make the pool larger.",
  ],
  [
    "a full quota",
    async ({ pool }) => {
      await createPool(pool, { ...ADDRESSES, quota: { maxIps: 2, maxReservations: 3 } });
      await pool.claim(by("a"));
      await pool.claim(by("b"));
      await pool.offer(by("c"));
    },
    'POOL_QUOTA: IPPool p would have 3 leases on 3 values; its quota is {"maxIps":2,"maxReservations":3}. Release some, or raise the pool\'s quota.',
  ],
  [
    "a pool that does not exist",
    async ({ pool }) => {
      await pool.offer(runner("n", "r"));
    },
    "POOL_NOT_FOUND: Network n does not exist. Create its resource first, or correct the name.",
  ],
  [
    "a pool that only a preview knows",
    async ({ pool }) => {
      await pool.offer(network("n", "10.0.0.0/8"));
      await pool.claim(runner("n", "r"));
    },
    "POOL_NOT_FOUND: Network n exists only in a preview so far. Create its resource first, or correct the name.",
  ],
  [
    "a pool that is being deleted",
    async ({ pool }) => {
      const { leaseId } = await pool.claim(network("n", "10.0.0.0/8"));
      await pool.close("space/default", leaseId);
      await pool.claim(runner("n", "r"));
    },
    "POOL_NOT_FOUND: Network n is being deleted. Create its resource first, or correct the name.",
  ],
  [
    "another tenant",
    async ({ pool }) => {
      await createPool(pool, { ...ADDRESSES, tenant: ACME });
      await pool.offer(by("a", { tenant: { org: "evil", project: "x" } }));
    },
    "TENANT_MISMATCH: IPPool p belongs to tenant acme/shop; this request comes from tenant evil/x. Set `tenant` on the resource, or overlay:tenant (OVERLAY_TENANT), to acme/shop if that is your tenant, or use another pool.",
  ],
  [
    "no tenant",
    async ({ pool }) => {
      await createPool(pool, { ...ADDRESSES, tenant: ACME });
      await pool.offer(by("a"));
    },
    "TENANT_MISMATCH: IPPool p belongs to tenant acme/shop; this request comes from no tenant. Set `tenant` on the resource, or overlay:tenant (OVERLAY_TENANT), to acme/shop if that is your tenant, or use another pool.",
  ],
  [
    "the delete of a pool with leases",
    async ({ pool }) => {
      const { leaseId } = await pool.claim(network("n", "10.0.0.0/8"));
      await pool.claim(runner("n", "r"));
      await pool.close("space/default", leaseId);
    },
    "POOL_IN_USE: Network n still has leases: 1 runner r (last seen 2030-01-01T00:00:00Z). Delete what holds them first.",
  ],
  [
    "a pool that shrinks below its leases",
    async ({ pool }) => {
      const opener = await createPool(pool, ADDRESSES);
      await pool.claim(requestFor("a", "10.0.0.8"));
      const childPool = {
        name: "pool/p",
        kind: "address" as const,
        allocation: "lowest" as const,
        ranges: ranges("10.0.0.0/29"),
      };
      await pool.change(opener.pool, opener.leaseId, { childPool });
    },
    "POOL_IN_USE: IPPool p cannot lose values that are held: 10.0.0.8 a (last seen 2030-01-01T00:00:00Z). Delete what holds them first. What no stack has any more (retainOnDelete, a lost state) is freed by `overlayctl ip free --ip ADDRESS --force`.",
  ],
  [
    "a child pool with values that its lease has not",
    async ({ pool }) => {
      const childPool = {
        name: "pool/p",
        kind: "address" as const,
        allocation: "lowest" as const,
        ranges: ranges("10.0.0.0/23"),
      };
      await pool.claim(
        by("a", {
          pool: "space/address",
          type: "IPPool",
          values: ranges("10.0.0.0/24"),
          childPool,
        } as Partial<Request>),
      );
    },
    "IP_OUTSIDE_POOL: IPPool p would give out 10.0.0.0/23; its lease has 10.0.0.0/24 for it. Give the pool values of its lease only.",
  ],
  [
    "a fenced lease",
    async ({ pool }) => {
      await createPool(pool, IDS);
      await pool.change("pool/p", "0123456789abcdef.0123456789abcdef", { usedBy: "c" });
    },
    "LEASE_FENCED: Lease LEASE in IPPool p is no longer current. Run up again, or refresh.",
  ],
  [
    "an expired lease",
    async ({ pool, pass }) => {
      await createPool(pool, IDS);
      const { leaseId } = await pool.claim(by("a", { ttl: 60 }));
      pass(61);
      await pool.change("pool/p", leaseId, { ttl: 60 });
    },
    "LEASE_EXPIRED: Lease LEASE of a in IPPool p ended at 2030-01-01T00:01:00Z. Run up again: it requests a new one.",
  ],
  [
    "an offer that is changed",
    async ({ pool }) => {
      await createPool(pool, IDS);
      const { leaseId } = await pool.offer(by("a"));
      await pool.change("pool/p", leaseId, { state: "used" });
    },
    "INPUT_INVALID: Lease LEASE of a in IPPool p is only an offer. Claim it first.",
  ],
  [
    "a lease in another state",
    async ({ pool }) => {
      await createPool(pool, IDS);
      const { leaseId } = await pool.claim(by("a"));
      await pool.change("pool/p", leaseId, { state: "used", usedBy: "c1" });
      await pool.change("pool/p", leaseId, { usedBy: "c2" }, { onlyIf: { state: "reserved" } });
    },
    "LEASE_CHANGED: Lease LEASE in IPPool p is used by c1 now, and not reserved. Nothing was changed. Read it again.",
  ],
  [
    "a lease with other data",
    async ({ pool }) => {
      await createPool(pool, IDS);
      const { leaseId } = await pool.claim(by("a", { data: { run: "1" } }));
      await pool.change("pool/p", leaseId, { usedBy: "c2" }, { onlyIf: { data: { run: "2" } } });
    },
    "LEASE_CHANGED: Lease LEASE in IPPool p was changed after it was read. Nothing was changed. Read it again.",
  ],
  [
    "a second lease of an owner that may have one",
    async ({ pool }) => {
      await createPool(pool, IDS);
      await pool.claim(by("a", { idempotent: true }));
      await pool.claim(by("a", { idempotent: true, values: ranges("7") }));
    },
    "RESERVATION_EXISTS: a holds runner id 1 of IPPool p already (reserved). Release that one first.",
  ],
  [
    "a ttl beside a child pool",
    async ({ pool }) => {
      await pool.claim({ ...network("n", "10.0.0.0/8"), ttl: 60 });
    },
    "INPUT_INVALID: network n has a ttl, but owns network n: the pool and its leases would be deleted with it. Leave out the ttl.",
  ],
  [
    "a port that is taken",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      await pool.claim(by("a", WEB));
      await pool.offer(by("b", WEB));
    },
    "PORT_CONFLICT: Port tcp/80 on 10.0.0.0 of IPPool p belongs to a. Choose another port, or another sharing key. To move a port between resources of one stack, remove it in one up and add it in the next.",
  ],
  [
    "an address that is shared under another key",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      const { leaseId } = await pool.claim(by("a", WEB));
      const ports: Port[] = [{ protocol: "tcp", port: 81 }];
      await pool.claim(by("b", { ...WEB, ports }));
      await pool.change("pool/p", leaseId, { sharingKey: null });
    },
    "SHARING_CONFLICT: Address 10.0.0.0 of IPPool p is shared by b under another key or tenant than none. Use the same sharing key and tenant, or another address.",
  ],
  [
    "an event that is not made yet",
    async ({ pool }) => {
      await pool.events({ after: 7 });
    },
    "EVENTS_LOST: There is no event 7 in the store, whose newest one is 0: an older backup of it was restored. List all leases again, and follow the events after 0.",
  ],
];

const NAMES: [name: string, message: string][] = [
  [
    "network/n",
    "NETWORK_EXISTS: Network name n belongs to a (IPReservation, reserved). Choose another name, or remove that one first.",
  ],
  [
    "runner/n/r",
    "RUNNER_NAME_TAKEN: Runner name r of network n belongs to a (IPReservation, reserved). Choose another name, or remove that one first.",
  ],
  [
    "user/n/c1",
    "RESERVATION_EXISTS: The address for c1 on network n belongs to a (IPReservation, reserved). Choose another usedBy, or remove that one first.",
  ],
  [
    "host/10.0.0.9/link/br0",
    "DEVICE_FOREIGN: Device br0 on host 10.0.0.9 belongs to a (IPReservation, reserved). Choose another bridgeName or hubInterface, or remove that one first.",
  ],
  [
    "host/10.0.0.9/devices/vx",
    "DEVICE_FOREIGN: Device prefix vx on host 10.0.0.9 belongs to a (IPReservation, reserved). Choose another devicePrefix, or remove that one first.",
  ],
  [
    "pool/lb",
    "POOL_OVERLAP: Pool name lb belongs to a (IPReservation, reserved). Choose another name, or remove that one first.",
  ],
];

const WARNINGS: [what: string, act: (fixture: Fixture) => Promise<Lease>, warning: string][] = [
  [
    "a promise that another owner holds now",
    async ({ pool, another, pass }) => {
      await createPool(pool, IDS);
      await pool.offer(by(n));
      pass(3601);
      await another().claim(requestFor(x, "1"));
      return another().offer(by(n));
    },
    `Runner id 1 of IPPool p was promised to IPReservation n at 2030-01-01T00:00:00Z and is now reserved by ${x}. This preview shows another one.`,
  ],
  [
    "a quarantined value",
    async ({ pool }) => {
      await createPool(pool, ADDRESSES);
      await pool.release("pool/p", (await pool.claim(requestFor("a", "10.0.0.7"))).leaseId);
      return pool.offer(requestFor("b", "10.0.0.7"));
    },
    "Address 10.0.0.7 of IPPool p was released by a at 2030-01-01T00:00:00Z and is given out again before its quarantine ends.",
  ],
  [
    "a pool that is filled to its warnAtPercent",
    async ({ pool }) => {
      await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.2"), warnAtPercent: 50 });
      return pool.offer(by("a"));
    },
    "50 % or more of the 2 addresses of IPPool p are held or promised.",
  ],
];

const withoutIds = (text: string): string => text.replace(/[0-9a-f]{16}\.[0-9a-f]{16}/g, "LEASE");

const messageOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "nothing is refused",
    (error: Error) => withoutIds(error.message),
  );

describe("refused:", () => {
  test.each(REFUSALS)("%s", async (_, act, message) => {
    expect(await messageOf(act(await createFixture(memoryEngine())))).toBe(message);
  });

  test.each(NAMES)("the name %s, which another lease has", async (name, message) => {
    const { pool } = await createFixture(memoryEngine());
    await createPool(pool, IDS);
    await pool.claim(by("a", { names: [name] }));
    expect(await messageOf(pool.offer(by("b", { names: [name] })))).toBe(message);
  });
});

test.each(WARNINGS)("warned of: %s", async (_, act, warning) => {
  expect((await act(await createFixture(memoryEngine()))).warnings).toEqual([warning]);
});
