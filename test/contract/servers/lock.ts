import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { FaultyProxy } from "./faulty-proxy";
import { get, put, type Remote, reroute } from "./remote";

/** After its second conflict a transaction runs with the lock. Its commit must then succeed, whatever other processes send. */
export function lockContract(remote: Remote): void {
  let [proxy, delaying]: FaultyProxy[] = [];
  beforeEach(async () => {
    [proxy, delaying] = [await remote.startProxy(), await remote.startProxy()];
  });
  afterEach(() => Promise.all([proxy!.end(), delaying!.end()]));

  test("commits fail while another process has the lock, also one that was sent before and arrives later", async () => {
    const url = remote.newUrl(proxy);
    const [holder, other] = [await remote.open(url), await remote.open(url)];
    let conflicts = 0;
    const late = await remote.open(reroute(url, proxy!, delaying!), { onConflict: () => conflicts++ });
    let [runs, sent]: [number, Promise<void> | undefined] = [0, undefined];
    await holder.transact(async (tx) => {
      await tx.write([["holder", "done"]]);
      if (++runs <= 2) await other.transact(put("other", String(runs)));
      if (runs === 2) {
        // The next attempt has the lock. This commit is sent before that, on the newest version.
        delaying!.changeAt = { bytes: remote.commitBytes, state: "holdRequests" };
        sent = late.transact(put("late", "done"));
        await vi.waitFor(() => expect(delaying!.holdsRequests).toBe(true), { timeout: 10_000 });
      }
      if (runs === 3) {
        delaying!.deliver();
        // After its first conflict it sends one more commit without the lock.
        await Promise.race([sent, vi.waitFor(() => expect(conflicts).toBe(2), { timeout: 10_000 })]);
      }
    });
    expect(runs).toBe(3);
    await sent;
    expect([await other.read(get("holder")), await other.read(get("late"))]).toEqual(["done", "done"]);
  });
}
