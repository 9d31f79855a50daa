import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeEach, describe, expect, test } from "vitest";
import { openIpam } from "../../provider/ipam";
import { findSpec } from "../../provider/ipam/interface";
import type { PlannedRequest } from "../../provider/ipam/run-plan";
import type { PoolSpec, Store, ValueRange } from "../../provider/ipam/types";
import {
  asStored,
  by,
  createPool,
  existingLease,
  firstOf,
  network,
  openPool,
  type Pool,
  poolOf,
  ranges,
  requestFor,
} from "./fixture";
import { HttpProxy } from "./servers/http-proxy";
import { type Service, serveInProcess } from "./servers/service";

/** Answers that get lost, and several instances of the service on one store. */

const TERMS = { offerTtl: 3600, quarantine: 300 };
const inStack = (name: string) => `scope/urn:pulumi:dev::project::overlay:index:IPReservation::${name}`;
const [a, b, c] = ["a", "b", "c"].map(inStack) as [string, string, string];

let services: Service[];
let proxy: HttpProxy;
let operator: Pool;
const folder = mkdtempSync(join(tmpdir(), "overlay-service-"));
let files = 0;
afterAll(() => rmSync(folder, { recursive: true }));

const openStore = (url: string): Promise<Store> => openIpam(url, TERMS);

/** One instance of the service on each of the stores. */
async function serve(...stores: Store[]): Promise<void> {
  const caller = { name: "ci", scopes: ["deploy" as const] };
  services = await Promise.all(stores.map((store) => serveInProcess(store, { caller })));
  proxy = await HttpProxy.before(services.map(({ port }) => port));
  operator = poolOf(stores[0]!);
}

/** A run of Pulumi. */
const newRun = (): Promise<Pool> =>
  openPool(proxy.url, { ...TERMS, swapWait: 0.5, storeToken: "unused", actor: "ann@host" });

afterEach(async () => {
  expect(await operator.fsck()).toEqual([]);
  await proxy.close();
  await Promise.all(services.map(({ app }) => app.close()));
});

describe("an answer that gets lost", () => {
  let pool: Pool;
  beforeEach(async () => {
    await serve(await openStore("memory:"));
    pool = await newRun();
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
  });

  test("of an offer or a claim: the owner gets the same value", async () => {
    proxy.loseAnswers("offer");
    const offer = await pool.offer(by(a));
    proxy.loseAnswers("claim", 2);
    const lease = await pool.claim(requestFor(a, "1"));
    expect(lease).toMatchObject({ uid: offer.uid, state: "reserved" });
    expect(await pool.find({ pool: "pool/p", leaseId: lease.leaseId })).toEqual(asStored(lease));
    expect(await pool.leases("pool/p")).toHaveLength(1);
    await operator.mustInclude({ ...(await pool.describe()), ...lease.version });
  });

  test("of a batch: no more leases than requests", async () => {
    proxy.loseAnswers("claimAll");
    const leases = await pool.ipam.claim([by("x"), by("y")]);
    expect((await pool.leases("pool/p")).map(({ leaseId }) => leaseId)).toEqual(leases.map(({ leaseId }) => leaseId));
  });

  test("of a change that compares what it changes: it is made once, and its own version is known", async () => {
    const { leaseId } = await pool.claim(by(a, { data: { run: "r0" } }));
    proxy.loseAnswers("change");
    const changed = await pool.change("pool/p", leaseId, { data: { run: "r1" } }, { onlyIf: { data: { run: "r0" } } });
    expect(changed).toMatchObject({ data: { run: "r1" } });
    expect(changed.version).toMatchObject({ version: (await operator.describe()).version });
    proxy.loseAnswers("change");
    const used = { state: "used", usedBy: "box" } as const;
    expect(await pool.change("pool/p", leaseId, used, { onlyIf: { state: "reserved" } })).toMatchObject(used);
  });

  test("of a change that another process has made: it is refused", async () => {
    const { leaseId } = await pool.claim(by(a, { data: { run: "r0" } }));
    await operator.change("pool/p", leaseId, { data: { run: "other" } });
    proxy.loseAnswers("change");
    await expect(
      pool.change("pool/p", leaseId, { data: { run: "r1" } }, { onlyIf: { data: { run: "r0" } } }),
    ).rejects.toMatchObject({ code: "LEASE_CHANGED" });
  });

  test("of a release: the lease is released, and one that was kept is not", async () => {
    const lease = await pool.claim(by(a));
    proxy.loseAnswers("release");
    const onlyIf = { state: "used" } as const;
    expect(await pool.release("pool/p", lease.leaseId, { onlyIf })).toBe(false);
    proxy.loseAnswers("release");
    expect(await pool.release("pool/p", lease.leaseId)).toBe(true);
    expect(await pool.find({ pool: "pool/p", owner: a })).toBeUndefined();
  });

  test("of an import, a heartbeat and the close of a pool", async () => {
    proxy.loseAnswers("importLeases");
    const { conflicts } = await pool.importLeases([existingLease(by("x"), "5")]);
    expect(conflicts).toEqual([]);
    expect(await pool.find({ pool: "pool/p", value: 5n })).toMatchObject({ owner: "x" });
    const opener = await pool.claim(network("n", "10.0.0.0/8"));
    for (const name of ["touch", "close"]) proxy.loseAnswers(name);
    await pool.touch(opener.pool, opener.leaseId);
    await pool.close(opener.pool, opener.leaseId);
    await expect(pool.claim({ ...by("y"), pool: "network/n" })).rejects.toThrow(/is being deleted/);
  });

  test("of an offer that is refused: it is refused again", async () => {
    const first = await pool.offer(by(a));
    proxy.loseAnswers("offer");
    await expect(pool.offer(requestFor(b, String(firstOf(first))))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    expect(await pool.offer(by(a))).toMatchObject({ uid: first.uid, ranges: first.ranges });
  });
});

describe("round trips", () => {
  /** The calls that this needs. */
  async function callsOf(work: () => Promise<unknown>): Promise<string[]> {
    const before = proxy.calls.length;
    await work();
    return proxy.calls.slice(before);
  }
  let pool: Pool;
  beforeEach(async () => {
    await serve(await openStore("memory:"));
    pool = await newRun();
    await createPool(pool, { ranges: ranges("1-150"), kind: "id" });
  });

  test("an offer, a claim and a change need one each", async () => {
    expect(await callsOf(() => pool.offer(by(a)))).toEqual(["offer"]);
    expect(await callsOf(() => pool.claim(by(a)))).toEqual(["claim"]);
    const { leaseId } = (await pool.find({ pool: "pool/p", owner: a }))!;
    expect(await callsOf(() => pool.change("pool/p", leaseId, { labels: { x: "y" } }))).toEqual(["change"]);
  });

  test("an offer whose child pool follows from what it gets needs two", async () => {
    const childPool = ([id]: ValueRange[]): PoolSpec => ({
      name: `pool/child-${id!.first}`,
      kind: "id",
      ranges: ranges("1-9"),
      allocation: "lowest",
    });
    const request = { ...by(a), childPool };
    expect(await callsOf(() => pool.offer(request))).toEqual(["offer", "offer"]);
    expect(await callsOf(() => pool.claim({ ...request, values: ranges("1") }))).toEqual(["claim"]);
  });
});

describe("two instances that get every other request", () => {
  const stores: [string, () => Promise<[Store, Store]>][] = [
    [
      "one memory",
      async () => {
        const store = await openStore("memory:");
        return [store, store];
      },
    ],
    [
      "a SQLite file",
      async () => {
        const url = `sqlite:${join(folder, `${files++}.db`)}`;
        return [await openStore(url), await openStore(url)];
      },
    ],
  ];

  test.each(stores)("on %s: resources swap their values, as preview has shown", async (_, open) => {
    await serve(...(await open()));
    const before = await newRun();
    await createPool(before, { ranges: ranges("1-9"), kind: "id" });
    const swap: [string, string, string][] = [
      [a, "1", "2"],
      [b, "2", "3"],
      [c, "3", "1"],
    ];
    for (const [owner, has] of swap) await before.claim(requestFor(owner, has));
    const preview = await newRun();
    for (const [owner, , next] of swap) await preview.offer(requestFor(owner, next));
    const up = await newRun();
    for (const [owner, , next] of swap) await up.offer(requestFor(owner, next), { inUp: true });
    for (const [owner, , next] of swap) await up.claim(requestFor(owner, next));
    expect((await up.leases("pool/p")).map(({ owner }) => owner)).toEqual([c, a, b]);
  });

  test.each(stores)("on %s: a network and its runners have the pools that preview has shown", async (_, open) => {
    await serve(...(await open()));
    const [preview, up] = [await newRun(), await newRun()];
    const spec = { ...network("n", "::/96").childPool, allocation: "random" as const };
    const opened = await up.claim({ ...network("n", "::/96"), childPool: spec });
    const runner: PlannedRequest = {
      pool: opened.childPool!,
      owner: a,
      type: "RunnerSubnet",
      childPool: ([id]) => ({
        name: "runner/n/r",
        kind: "address",
        ranges: [{ first: id!.first * 256n, last: id!.first * 256n + 9n }],
        allocation: "lowest",
      }),
    };
    const offer = await preview.offer(runner);
    const lease = await up.claim({ ...runner, values: offer.ranges });
    expect(lease.childPool).toBe("runner/n/r");
    expect((await findSpec(up, "runner/n/r"))?.ranges[0]?.first).toBe(firstOf(lease) * 256n);
  });
});
