import { beforeEach, describe, expect, test } from "vitest";
import { parseIp } from "../../../provider/addressing/ip";
import { findUsage } from "../../../provider/ipam/interface";
import type { Ipam, Request } from "../../../provider/ipam/types";
import {
  type Context,
  findLeases,
  ipOf,
  type Reservation,
  reserve,
  reserveInput,
  reserveMany,
  useAddress,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { codeOf, messageOf } from "./answers";

/** Several addresses at once, and addresses on any runner. */
let stage: Stage;
let context: Context;
beforeEach(async () => {
  stage = await Stage.up({ quarantine: 0 });
  context = { pool: stage.pool.ipam };
  await stage.network("training", { subnets: "10.10.0.0/16/8/8" });
  for (const [i, name] of ["a", "b", "c"].entries()) await stage.runner(name, `192.0.2.${11 + i}`);
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/29"], allocation: "lowest" });
});

const runnersOf = (reservations: Reservation[]): string =>
  reservations.map(({ lease }) => lease.pool.split("/")[2]).join("");

/** Leaves so many addresses free on a runner. */
async function fill(runner: string, free: number): Promise<void> {
  const { capacity } = (await findUsage(stage.pool.ipam, `runner/training/${runner}`))!;
  const requests = Array.from({ length: Number(capacity) - free }, (_, i) => ({
    pool: `runner/training/${runner}`,
    owner: `filler ${i}`,
    type: "IPReservation",
  }));
  await stage.pool.ipam.claim(requests);
}

/** The pool, with work of another process before each `claim`. */
const beforeClaims = (pool: Ipam, work: () => Promise<void>): Ipam =>
  new Proxy(pool, {
    get(target, key) {
      const member = Reflect.get(target, key);
      if (key === "claim") return (requests: Request[]) => work().then(() => target.claim(requests));
      return typeof member === "function" ? member.bind(target) : member;
    },
  });

describe("several at once", () => {
  test("each has an address and a token of its own, which works", async () => {
    const reservations = await reserveMany(context, { pool: "web", count: 3 });
    expect(reservations.map(({ lease }) => ipOf(lease))).toEqual(["192.168.7.0", "192.168.7.1", "192.168.7.2"]);
    for (const [i, { token }] of reservations.entries())
      expect(await useAddress(context, { token, by: `c${i}` })).toMatchObject({ usedBy: `c${i}` });
    expect(new Set(reservations.map(({ lease }) => lease.owner)).size).toBe(3);
  });

  test("there are none if there is no room for all", async () => {
    await reserveMany(context, { pool: "web", count: 5 });
    expect(await codeOf(reserveMany(context, { pool: "web", count: 4 }))).toBe("POOL_EXHAUSTED");
    expect(await findLeases(context, { pool: "web" })).toHaveLength(5);
    expect(await reserveMany(context, { pool: "web", count: 3 })).toHaveLength(3);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("each on a runner has the gateway of the runner", async () => {
    const reservations = await reserveMany(context, { network: "training", runner: "b", count: 2 });
    expect(reservations.map(({ gateways }) => gateways)).toEqual([["10.10.2.1"], ["10.10.2.1"]]);
  });

  test.each([
    [{ pool: "web", count: 2, by: "c1" }, "A request with container is for one address, and 2 are requested."],
    [{ pool: "web", count: 2, ip: "192.168.7.1" }, "A request with ip is for one address"],
    [{ pool: "web", by: "c1", owner: "job" }, "Both container and owner are given."],
    [{ anyRunner: true }, "A reservation on any runner is for a network, without a runner or a pool."],
    [
      { placement: "spread", network: "training", runner: "a" },
      "A reservation on any runner is for a network, without a runner or a pool.",
    ],
  ])("%j is refused", async (input, text) => {
    expect(await messageOf(reserveMany(context, reserveInput.parse(input)))).toContain(`INPUT_INVALID: ${text}`);
  });

  test.each([0, 65, 1.5, "many"])("a count of %j is no input", (count) => {
    expect(reserveInput.safeParse({ pool: "web", count }).success).toBe(false);
  });
});

describe("on any runner", () => {
  const anywhere = (more: object = {}) => reserveMany(context, { network: "training", anyRunner: true, ...more });

  test.each([
    ["mostFree", "cccbc"],
    ["packed", "aabbb"],
    ["spread", "abcab"],
  ] as const)("%s places a batch one by one: %s", async (placement, expected) => {
    await fill("a", 2);
    await fill("b", 4);
    await fill("c", 7);
    // By reservations all three have about the same number, so `spread` is decided by these.
    if (placement === "spread") {
      for (const name of ["a", "b", "c"]) {
        const leases = await stage.pool.ipam.leases(`runner/training/${name}`);
        for (const { pool, leaseId } of leases) await stage.pool.ipam.release(pool, leaseId);
      }
    }
    expect(runnersOf(await anywhere({ count: 5, placement }))).toBe(expected);
  });

  test("a runner that is full is passed over, and when all are full nothing is held", async () => {
    await fill("a", 1);
    await fill("b", 1);
    await fill("c", 0);
    const held = async () => (await stage.pool.ipam.leases("runner/training/a")).length;
    const before = await held();
    expect(await messageOf(anywhere({ count: 3 }))).toBe(
      "POOL_EXHAUSTED: Network training has room for 2 of the 3 addresses that were requested. Release what is no longer needed, or add a runner.",
    );
    expect(await held()).toBe(before);
    expect(runnersOf(await anywhere({ count: 2 }))).toBe("ab");
    expect(await messageOf(anywhere())).toContain(
      "POOL_EXHAUSTED: No address is free on any runner of network training.",
    );
  });

  test("the next runner is tried if the chosen one is filled meanwhile", async () => {
    await fill("a", 5);
    await fill("b", 4);
    await fill("c", 0);
    const others = Array.from({ length: 4 }, (_, i) => ({
      pool: "runner/training/a",
      owner: `other ${i}`,
      type: "IPReservation",
    }));
    let isFirst = true;
    const pool = beforeClaims(context.pool, async () => {
      if (isFirst) await context.pool.claim(others);
      isFirst = false;
    });
    const given = await reserveMany({ pool }, { network: "training", anyRunner: true, count: 4 });
    expect([...runnersOf(given)].sort().join("")).toBe("abbb");
  });

  test("an address says which runner it is", async () => {
    const [only] = await anywhere({ ip: parseIp("10.10.2.9") });
    expect([ipOf(only!.lease), only!.lease.pool]).toEqual(["10.10.2.9", "runner/training/b"]);
    expect(await codeOf(anywhere({ ip: parseIp("10.10.9.9") }))).toBe("IP_OUTSIDE_POOL");
  });

  test("the same container keeps its runner", async () => {
    const [first] = await anywhere({ by: "c1" });
    await fill(first!.lease.pool.split("/")[2]!, 0).catch(() => {});
    const [again] = await anywhere({ by: "c1" });
    expect(again!.lease.leaseId).toBe(first!.lease.leaseId);
  });

  test("runners that exist only in a preview, or are being deleted, get none", async () => {
    await stage.preview("RunnerSubnet", "d", {
      network: "training",
      connection: { host: "192.0.2.14" },
      hubConnection: { host: "192.0.2.1" },
    });
    for (const name of ["a", "b"]) await fill(name, 0);
    await fill("c", 1);
    const lease = (await stage.pool.ipam.find({ name: "runner/training/a" }))!;
    await stage.pool.ipam.change(lease.pool, lease.leaseId, { deleting: true });
    expect(runnersOf(await anywhere())).toBe("c");
    expect(await codeOf(anywhere())).toBe("POOL_EXHAUSTED");
    expect(await codeOf(reserve(context, { network: "nowhere", anyRunner: true }))).toBe("POOL_NOT_FOUND");
  });

  test("with both address families, a runner without an IPv4 address is full", async () => {
    await stage.network("dual", {
      subnets: ["10.20.0.0/16/8/8", "fd00:1::/48/16/64"],
      hubConnection: { host: "192.0.2.2" },
    });
    for (const [i, name] of ["x", "y"].entries())
      await stage.make("RunnerSubnet", name, {
        network: "dual",
        connection: { host: `192.0.3.${11 + i}` },
        hubConnection: { host: "192.0.2.2" },
      });
    const given = await reserveMany(context, { network: "dual", runner: "x", count: 189 });
    expect(given[0]!.gateways).toEqual(["10.20.1.1", "fd00:1:0:1::1"]);
    const place = { network: "dual", placement: "packed", count: 3 } as const;
    expect(runnersOf(await reserveMany(context, place))).toBe("xyy");
  });
});
