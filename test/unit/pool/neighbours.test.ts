import { beforeEach, expect, test } from "vitest";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { StoredPool } from "../../../provider/pool/pool";
import type { Store } from "../../../provider/pool/storage/store";
import type { Lease } from "../../../provider/ipam/types";
import { createPool, extents, requestFor } from "../../contract/fixture";

/** The holder of a value and a request for it, concurrently in one preview. */
const owner = (name: string): string => `org/urn:pulumi:dev::p::overlay:index:IPReservation::${name}`;
const [old, fresh] = [owner("old"), owner("fresh")];
const terms = { offerTtl: 3600, quarantine: 0, swapWait: 0.1 };

let store: Store;
let earlier: StoredPool;
let held: Lease;

beforeEach(async () => {
  store = createMemoryStore();
  earlier = new StoredPool(store, terms);
  await createPool(earlier, { extents: extents("10.0.0.0/24") });
  held = await earlier.claim(requestFor(old, "10.0.0.7"));
});

test("a holder that keeps its value is refused while the value is being offered: only one of both succeeds", async () => {
  let refusal: Promise<unknown> | undefined;
  const transact: Store["transact"] = async (work, promised) => {
    const result = await store.transact(work, promised);
    refusal ??= preview.markKept(held).catch((error: unknown) => error); // the offer is written, but not answered yet
    return result;
  };
  const preview = new StoredPool({ ...store, transact }, terms);
  expect(await preview.offer(requestFor(fresh, "10.0.0.7"))).toMatchObject({ owner: fresh });
  expect(String(await refusal)).toMatch(/IP_IN_USE: .* is promised to \S*::fresh\./);
});

test("a retried transaction warns only of the holders in its last attempt", async () => {
  const transact: Store["transact"] = async (work) => {
    await store.read((tx) => work({ ...tx, write: () => {} }));
    await earlier.release("pool/p", held.leaseId);
    return store.transact(work);
  };
  const lease = await new StoredPool({ ...store, transact }, terms).offer(requestFor(fresh, "10.0.0.7"));
  expect(lease).toMatchObject({ state: "offered", owner: fresh });
  expect(lease.warnings).toBeUndefined();
});
