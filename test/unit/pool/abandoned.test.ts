import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { PoolSpec, Request } from "../../../provider/ipam/types";
import { inProgram, openPool, type Pool } from "../../contract/fixture";
import { refusal } from "../../contract/refusal";

/** What is left of a program that was changed since: offers that will not be claimed, leases without a resource. */
let folder: string;
let runs: Pool[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "overlay-abandoned-"));
  runs = [];
});

afterEach(async () => {
  for (const run of runs) await run.end();
  rmSync(folder, { recursive: true });
});

/** A run of Pulumi has a process of its own. */
async function run(): Promise<Pool> {
  const pool = await openPool(`sqlite:${join(folder, "pool.db")}`, {
    offerTtl: 3600,
    quarantine: 300,
    swapWait: 0.1,
  });
  runs.push(pool);
  return pool;
}

const network = (name: string, stack: string, program = "main"): Request => ({
  pool: "space/default",
  owner: `org/urn:pulumi:${stack}::p::overlay:index:OverlayNetwork::${name}`,
  type: "OverlayNetwork",
  program,
  values: [{ first: 1024n, last: 2047n }],
  names: ["network/training"],
});

test("a renamed resource gets what the last preview promised under its old name", async () => {
  await (await run()).offer(network("old", "dev", "before"));
  const lease = await (await run()).offer(network("new", "dev", "after"));
  expect(lease).toMatchObject({ state: "offered", names: ["network/training"] });
});

test.each<[what: string, more: Partial<PoolSpec>, code: string]>([
  ["a full pool", { ranges: [{ first: 1024n, last: 1025n }] }, "POOL_EXHAUSTED"],
  ["a quota", { quota: { maxReservations: 2 } }, "POOL_QUOTA"],
])("after a resource too many for %s is removed from the program, the next preview succeeds", async (_, more, code) => {
  const ranges = [{ first: 1024n, last: 2047n }];
  const childPool: PoolSpec = { name: "pool/p", kind: "address", ranges, allocation: "lowest", ...more };
  const address = (name: string, program: string, stack = "dev"): Request => ({
    pool: "pool/p",
    owner: `org/urn:pulumi:${stack}::p::overlay:index:IPReservation::${name}`,
    type: "IPReservation",
    program,
  });
  const first = await run();
  await first.claim({ ...network("p", "dev"), values: childPool.ranges, names: [], childPool });
  for (const name of ["a", "b"]) await first.offer(address(name, "before"));
  await expect(first.offer(address("c", "before"))).rejects.toMatchObject({ code });

  await expect((await run()).offer(address("x", "main", "prod"))).rejects.toMatchObject({ code });
  const second = await run();
  for (const name of ["c", "a"]) expect(await second.offer(address(name, "after"))).toMatchObject({ state: "offered" });
});

test("two resources of one program that request the same value are refused, whatever an earlier preview showed", async () => {
  await (await run()).offer(network("old", "dev", "before"));
  const second = await run();
  const requests = inProgram("after", network("old", "dev"), network("new", "dev")) as [Request, Request];
  await second.offer(requests[0]);
  await expect(second.offer(requests[1])).rejects.toMatchObject(refusal("POOL_OVERLAP", network("old", "dev").owner));
});

test("an offer to another stack is kept", async () => {
  await (await run()).offer(network("a", "dev"));
  const [shown, other] = [network("a", "dev"), network("a", "prod")];
  const offered = await (await run()).offer(other);
  expect(offered.warnings).toEqual([expect.stringContaining(shown.owner), expect.stringContaining(shown.owner)]);
  for (const { owner } of [shown, other])
    expect(await runs[0]!.find({ owner, program: "main" })).toMatchObject({ owner });
});

test("a claimed value is not preempted", async () => {
  await (await run()).claim(network("old", "dev"));
  await expect((await run()).offer(network("new", "dev"))).rejects.toMatchObject(
    refusal("POOL_OVERLAP", network("old", "dev").owner),
  );
});

test("a value that another resource of the stack holds is offered only while that is declared, and given only once it requests another value", async () => {
  const opener = await run();
  const ranges = [{ first: 1024n, last: 2047n }];
  const childPool: PoolSpec = { name: "pool/p", kind: "address", ranges, allocation: "lowest" };
  await opener.claim({ ...network("p", "dev"), names: [], childPool });
  const address = (name: string): Request => ({
    pool: "pool/p",
    owner: `org/urn:pulumi:dev::p::overlay:index:IPReservation::${name}`,
    type: "IPReservation",
    program: "main",
    values: [{ first: 1030n, last: 1030n }],
  });
  await opener.claim(address("old"));

  const later = await run();
  const gone = await run();
  const movesAway = () => false;
  await expect(gone.offer(address("new"), { movesAway })).rejects.toMatchObject(
    refusal("IP_IN_USE", address("old").owner),
  );
  const offer = await later.offer(address("new"));
  expect(offer).toMatchObject({ state: "offered", afterLease: [expect.any(String)] });
  await expect(later.claim(address("new"))).rejects.toMatchObject(refusal("PLAN_STALE", address("old").owner));

  const old = (await later.find({ pool: "pool/p", owner: address("old").owner }))!;
  await expect(later.markKept(old)).rejects.toMatchObject(refusal("IP_IN_USE", address("new").owner));
  const last = await run();
  await last.markKept(old);
  await expect(last.offer(address("new"))).rejects.toMatchObject(refusal("IP_IN_USE", address("old").owner));
});
