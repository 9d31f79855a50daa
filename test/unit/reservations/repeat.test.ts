import { beforeEach, describe, expect, test } from "vitest";
import { parseIp } from "../../../provider/addressing/ip";
import { claimOne } from "../../../provider/ipam/interface";
import { keyRing, signToken } from "../../../provider/ipam/token";
import type { LeaseSelector } from "../../../provider/ipam/types";
import {
  type Context,
  findLeases,
  ipOf,
  type Reservation,
  release,
  reserve,
  reserveInput,
  reserveMany,
  useAddress,
  validateOffline,
  validateToken,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { codeOf, messageOf } from "./answers";

/** Requests that are repeated because their answer was lost. */
let stage: Stage;
let context: Context;
async function setUp(settings: { tokenKeys?: string } = {}): Promise<void> {
  stage = await Stage.up(settings);
  context = { pool: stage.pool.ipam, ...settings };
  await stage.network("training", { subnets: "10.10.0.0/16/8/8" });
  for (const [i, name] of ["a", "b"].entries()) await stage.runner(name, `192.0.2.${11 + i}`);
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], allocation: "lowest" });
}
beforeEach(() => setUp());

const idsOf = (reservations: Reservation[]): string[] => reservations.map(({ lease }) => lease.leaseId);
const onA = { network: "training", runner: "a" };
const anywhere = { network: "training", anyRunner: true };

describe.each([
  ["a key", { key: "job 17/attempt 1" }],
  ["an owner", { owner: "job-17" }],
])("%s", (kind, name) => {
  test.each([
    ["on a runner", { ...onA }],
    ["in an IPPool", { pool: "web" }],
    ["on any runner", { ...anywhere }],
    ["on any runner, three of them", { ...anywhere, count: 3, placement: "spread" }],
    ["in an IPPool, three of them", { pool: "web", count: 3 }],
  ])("gives the same leases again %s, at the same moment, later, and when they are used", async (_, where) => {
    const input = reserveInput.parse({ ...where, ...name });
    const [first, second] = await Promise.all([reserveMany(context, input), reserveMany(context, input)]);
    expect(idsOf(second)).toEqual(idsOf(first));
    expect(first).toHaveLength(input.count ?? 1);
    for (const [i, { token }] of second.entries()) await useAddress(context, { token, by: `c${i}` });
    const later = await reserveMany(context, input);
    expect(idsOf(later)).toEqual(idsOf(first));
    expect(later.map(({ lease }) => lease.state)).toEqual(first.map(() => "used"));
    expect(await findLeases(context)).toHaveLength(first.length);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test.each([
    ["another pool", { pool: "web" }],
    ["any runner", { ...anywhere }],
    ["another address", { ...onA, ip: "10.10.1.9" }],
    ["several", { ...onA, count: 2 }],
  ])("is refused for another request: %s", async (_, other) => {
    const { lease } = await reserve(context, { ...onA, ...name });
    expect(await messageOf(reserveMany(context, reserveInput.parse({ ...other, ...name })))).toBe(
      `RESERVATION_EXISTS: The ${kind.split(" ")[1]} '${Object.values(name)[0]}' was used for another request (one address in runner a of network training), which holds ${ipOf(lease)} in runner a of network training. Use another one, or release that reservation first.`,
    );
    expect(await findLeases(context)).toHaveLength(1);
  });

  test("is free after a release, and after the end of the reservation", async () => {
    const first = await reserve(context, { ...onA, ...name, ttl: 60 });
    await release(context, { token: first.token });
    const second = await reserve(context, { pool: "web", ...name, ttl: 60 });
    expect(second.lease.pool).toBe("pool/web");
    stage.pass(61);
    expect((await reserve(context, { ...anywhere, ...name })).lease.pool).toMatch(/^runner\//);
  });

  test("belongs to its caller", async () => {
    const given = [];
    for (const caller of [undefined, "ci", "web"])
      given.push((await reserve({ ...context, caller }, { ...onA, ...name })).lease);
    expect(new Set(given.map(({ leaseId }) => leaseId)).size).toBe(3);
    expect(given.map(({ owner }) => owner.split("/").slice(0, 2).join("/"))).toEqual([
      "overlayctl/training",
      "service/ci",
      "service/web",
    ]);
  });
});

test("an owner is part of the owner of each lease, and stands for no container", async () => {
  const three = await reserveMany({ ...context, caller: "ci" }, { ...onA, owner: "job-17", count: 3 });
  expect(three.map(({ lease }) => lease.owner)).toEqual(
    [1, 2, 3].map((i) => `service/ci/training/a/job-17 (${i} of 3)`),
  );
  expect(await findLeases(context, { owner: "job-17" })).toHaveLength(3);
  expect((await release(context, { by: "job-17" })).leases).toEqual([]);
});

test("of a batch, what is left is not taken for the whole", async () => {
  const [first, second] = await reserveMany(context, { pool: "web", key: "k", count: 2 });
  await release(context, { token: first!.token });
  expect(await messageOf(reserveMany(context, { pool: "web", key: "k", count: 2 }))).toBe(
    `RESERVATION_EXISTS: Of the 2 addresses of key 'k', only ${ipOf(second!.lease)} is still held. Release the rest first, or use another one.`,
  );
});

test("a batch that another process commits while its names are read is found whole", async () => {
  const input = { pool: "web", key: "k", count: 3 };
  let committed: Promise<Reservation[]> | undefined;
  const pool = new Proxy(stage.pool.ipam, {
    get(target, key) {
      const member = Reflect.get(target, key);
      if (key !== "find") return typeof member === "function" ? member.bind(target) : member;
      return async (selector: LeaseSelector) => {
        if (committed) return committed.then(() => target.find(selector));
        const first = target.find(selector);
        committed = first.then(() => reserveMany(context, input));
        await committed;
        return first;
      };
    },
  });
  expect(idsOf(await reserveMany({ pool }, input))).toEqual(idsOf(await committed!));
});

test("a key and a container: the key finds the lease when it is used, another key does not", async () => {
  const { lease, token } = await reserve(context, { ...anywhere, by: "c1", key: "k1" });
  expect((await reserve(context, { ...anywhere, by: "c1", key: "k2" })).lease.leaseId).toBe(lease.leaseId);
  await useAddress(context, { token, by: "c1" });
  expect((await reserve(context, { ...anywhere, by: "c1", key: "k1" })).lease.leaseId).toBe(lease.leaseId);
  expect(await codeOf(reserve(context, { ...anywhere, by: "c1", key: "k2" }))).toBe("RESERVATION_EXISTS");
});

test.each(["", "x".repeat(201), "two\nlines"])("%j is no key", (key) => {
  expect(reserveInput.safeParse({ key }).success).toBe(false);
});

describe("a release by token", () => {
  test.each([0, 300])("may be repeated, with a quarantine of %d seconds", async (quarantine) => {
    const { ipam: pool } = (await Stage.up({ quarantine })).pool;
    await pool.claim([
      {
        pool: "space/default",
        owner: "opener",
        type: "IPPool",
        values: [{ first: parseIp("10.0.0.0"), last: parseIp("10.0.0.9") }],
        childPool: {
          name: "pool/p",
          kind: "address",
          ranges: [{ first: parseIp("10.0.0.0"), last: parseIp("10.0.0.9") }],
          allocation: "lowest",
        },
      },
    ]);
    const { lease, token } = await reserve({ pool }, { pool: "p", by: "c1" });
    expect((await release({ pool }, { token })).leases).toMatchObject([{ leaseId: lease.leaseId }]);
    expect(await release({ pool }, { token })).toEqual({ leases: [], kept: [] });
    const again = await reserve({ pool }, { pool: "p", by: "c1" });
    expect(await release({ pool }, { token })).toEqual({ leases: [], kept: [] });
    expect(await validateToken({ pool }, { token: again.token })).toMatchObject({ state: "reserved" });
  });

  test("has nothing to do when the reservation is over, and is refused while it is used", async () => {
    const { token } = await reserve(context, { pool: "web", ttl: 60 });
    stage.pass(61);
    expect(await release(context, { token })).toEqual({ leases: [], kept: [] });
    const used = await reserve(context, { pool: "web" });
    await useAddress(context, { token: used.token, by: "c1" });
    expect(await codeOf(release(context, { token: used.token }))).toBe("TOKEN_USED");
    await release(context, { by: "c1" });
    expect(await release(context, { token: used.token })).toEqual({ leases: [], kept: [] });
  });

  test("is refused for a token of a stack that a later up has replaced", async () => {
    const made = await stage.make("IPReservation", "job", { pool: "web" });
    await stage.change("IPReservation", "job", made, { pool: "web", labels: { a: "b" } });
    const lease = (await findLeases(context, { pool: "web" }))[0]!;
    const current = await claimOne(stage.pool.ipam, { pool: lease.pool, owner: lease.owner, type: lease.type });
    expect(current.leaseId).not.toBe(made.leaseId);
    expect(await codeOf(release(context, { token: String(made.token) }))).toBe("TOKEN_USED");
  });
});

describe("validation without the store", () => {
  const tokenKeys = "the key of this year,the key of last year";
  beforeEach(() => setUp({ tokenKeys }));

  test("shows what the token says, also if its lease is used by now", async () => {
    const { lease, token } = await reserve(context, { ...onA, ttl: 60 });
    expect(validateOffline({ tokenKeys }, { token, runner: "a" })).toEqual({
      checked: "signature",
      ip: ipOf(lease),
      pool: "runner/training/a",
      network: "training",
      runner: "a",
      expiresAt: "2030-01-01T00:01:00Z",
      owner: lease.owner,
      leaseId: lease.leaseId,
    });
    await useAddress(context, { token, by: "c1" });
    expect(await validateToken(context, { token, offline: true })).toMatchObject({
      checked: "signature",
    });
    expect(await codeOf(validateToken(context, { token }))).toBe("TOKEN_USED");
  });

  test.each([
    ["another key of 16 characters", {}, "TOKEN_SIGNATURE"],
    [tokenKeys, { runner: "b" }, "TOKEN_RUNNER"],
    [tokenKeys, { runner: "training/a" }, "done"],
    [undefined, {}, "TOKEN_KEYS_MISSING"],
  ])("with keys %j and %j: %s", async (keys, more, code) => {
    const { token } = await reserve(context, onA);
    expect(await codeOf((async () => validateOffline({ tokenKeys: keys }, { token, ...more }))())).toBe(code);
  });

  test("refuses what is over by this machine's clock", async () => {
    const grant = { pool: "runner/training/a", value: 1n, runner: "training/a", owner: "x", leaseId: "y" };
    const token = signToken({ ...grant, expiresAt: Date.now() - 1 }, keyRing(tokenKeys));
    expect(await codeOf((async () => validateOffline({ tokenKeys }, { token }))())).toBe("TOKEN_EXPIRED");
  });
});
