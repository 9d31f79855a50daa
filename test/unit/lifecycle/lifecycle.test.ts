import { expect, test, vi } from "vitest";
import type { Lease } from "../../../provider/ipam/types";
import { PartialFailure } from "../../../provider/lifecycle/lifecycle";
import {
  checked,
  fleet,
  makeNetwork,
  makeRunner,
  owner,
  pool,
  runnerInputs,
  runners,
  setUp,
  warnings,
} from "./network-fixture";

/** create, read and update. */
setUp();

test("a failure after the claim keeps the state and the value, and update continues", async () => {
  const network = await makeNetwork();
  fleet.down.add("192.0.2.11");
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  const error = await runners.create(inputs).catch((e: unknown) => e);
  expect(error).toBeInstanceOf(PartialFailure);
  const { id, properties, message } = error as PartialFailure;
  expect(id).toBe("training/a");
  expect(message).toContain("SSH_UNREACHABLE: 192.0.2.11");
  expect(properties).toMatchObject({ runnerId: 1, drift: [expect.stringContaining("not applied: SSH_UNREACHABLE")] });
  fleet.down.clear();
  expect(await runners.diff(properties, inputs)).toMatchObject({ changes: true, replaces: [] });
  expect(await runners.update(id, properties, inputs)).toMatchObject({
    runnerId: 1,
    drift: [],
    leaseId: properties.leaseId,
  });
  expect(fleet.itemsOn("192.0.2.11")).toContain("link ovl1");
});

test.each(["192.0.2.1", "192.0.2.11"])("if %s refuses, no host is changed", async (refusing) => {
  const network = await makeNetwork();
  fleet.takeWrites();
  fleet.refuses.add(refusing);
  await expect(makeRunner(network, "a", "192.0.2.11")).rejects.toThrow("DEVICE_FOREIGN");
  expect(fleet.takeWrites()).toEqual([]);
  fleet.refuses.clear();
  expect(await makeRunner(network, "a", "192.0.2.11")).toMatchObject({ runnerId: 1, drift: [] });
});

test("all hosts but the last are asked beforehand, and the last one accepts in the conversation that changes it", async () => {
  const network = await makeNetwork();
  fleet.conversations.length = 0;
  await makeRunner(network, "a", "192.0.2.11");
  expect(fleet.conversations).toEqual(["check 192.0.2.1", "apply 192.0.2.11", "apply 192.0.2.1"]);
});

test("a create whose answer was lost is repeated with the same value, and removes nothing from hosts", async () => {
  const network = await makeNetwork();
  await makeRunner(network, "a", "192.0.2.11");
  fleet.takeWrites();
  expect(await makeRunner(network, "a", "192.0.2.11")).toMatchObject({ runnerId: 1 });
  expect(fleet.takeWrites()).toEqual([]);
});

test("a forced replacement with equal inputs renews the lease; the delete of the old resource contacts no host", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  expect(await runners.diff(old, await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"), old))).toEqual({
    hasNewInputs: false,
    changes: false,
    replaces: [],
    deleteBeforeReplace: false,
  });
  const renewed = await makeRunner(network, "a", "192.0.2.11");
  fleet.contacted.length = 0;
  await runners.delete(old);
  expect(fleet.contacted).toEqual([]);
  expect(renewed).toMatchObject({ runnerId: 1, uid: old.uid });
  expect(fleet.itemsOn("192.0.2.11")).toContain("link ovl1");
  expect(await runners.diff(old, renewed)).toMatchObject({ changes: true, replaces: ["leaseId"] });
});

test("a rename is an update that contacts no host", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  const renamed = await checked(runners, "new", runnerInputs(network, "a", "192.0.2.11"), old);
  expect(await runners.diff(old, renamed)).toMatchObject({ changes: true, replaces: [] });
  fleet.contacted.length = 0;
  const props = await runners.update("training/a", old, renamed);
  expect(fleet.contacted).toEqual([]);
  expect(props).toMatchObject({ runnerId: 1, leaseId: old.leaseId });
  expect((await pool.ipam.find({ pool: "network/training", leaseId: String(old.leaseId) }))?.owner).toBe(owner("new"));
});

test("changed credentials reach the state and no host; a changed host is configured and the old one cleaned", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  fleet.contacted.length = 0;
  const rotated = await checked(
    runners,
    "a",
    runnerInputs(network, "a", "192.0.2.11", { connection: { host: "192.0.2.11", privateKey: "new" } }),
    old,
  );
  expect(await runners.diff(old, rotated)).toMatchObject({ changes: true, replaces: [] });
  const props = await runners.update("training/a", old, rotated);
  expect(fleet.contacted).toEqual([]);
  const moved = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.99"), rotated);
  expect(await runners.update("training/a", props, moved)).toMatchObject({
    runnerId: 1,
    effectiveUnderlayIp: "192.0.2.99",
  });
  expect(fleet.itemsOn("192.0.2.99")).toContain("link overlay-br");
  expect(fleet.itemsOn("192.0.2.11")).toEqual([]);
});

test("read reports differences as drift, and the next diff is an update", async () => {
  const network = await makeNetwork();
  const props = await makeRunner(network, "a", "192.0.2.11");
  fleet.items.get("192.0.2.1")!.delete("link ovl1");
  const { props: read, inputs } = await runners.read("training/a", props);
  expect(read.drift).toEqual(["192.0.2.1: link ovl1: missing"]);
  expect(inputs).not.toHaveProperty("leaseId");
  expect(await runners.diff(read, inputs)).toMatchObject({ changes: true, replaces: [] });
  fleet.takeWrites();
  expect(await runners.update("training/a", read, inputs)).toMatchObject({ drift: [] });
  expect(fleet.takeWrites()).toEqual(["192.0.2.1: + link ovl1"]);
});

test("read of a host that is down is drift, and does not fail", async () => {
  const props = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  const { props: read } = await runners.read("training/a", props);
  expect(read.drift).toEqual(["192.0.2.11: could not be read (SSH_UNREACHABLE)"]);
});

test.each([
  ["192.0.2.11", "192.0.2.1: link ovl1: missing"],
  ["192.0.2.1", "192.0.2.11: link overlay-br: missing"],
])("a host that cannot be read (%s) does not hide the drift of the other one", async (down, drift) => {
  const props = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  fleet.down.add(down);
  fleet.items.get("192.0.2.1")!.delete("link ovl1");
  fleet.items.get("192.0.2.11")!.delete("link overlay-br");
  const { props: read } = await runners.read("training/a", props);
  expect([...(read.drift as string[])].sort()).toEqual([drift, `${down}: could not be read (SSH_UNREACHABLE)`].sort());
  expect(warnings).toContainEqual(expect.stringMatching(new RegExp(`^drift of .* a: ${drift}$`)));
});

test("without facts of a host in the state, the others are not compared, and the drift says so", async () => {
  const { underlays: _, ...props } = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  fleet.down.add("192.0.2.1");
  const { props: read } = await runners.read("training/a", props);
  expect(read.drift).toEqual([
    "192.0.2.1: could not be read (SSH_UNREACHABLE)",
    "192.0.2.11: was not compared, because another host of the resource could not be read",
  ]);
});

test("after a failed move to another host the old one is kept in the state, and cleaned in the end", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  const moved = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.99"), old);
  fleet.down.add("192.0.2.99");
  const error = (await runners.update("training/a", old, moved).catch((e: unknown) => e)) as PartialFailure;
  expect(error.properties.pendingCleanup).toEqual(["runner 192.0.2.11 22"]);
  fleet.down.clear();
  expect(await runners.update("training/a", error.properties, moved)).toMatchObject({ pendingCleanup: [], drift: [] });
  expect(fleet.itemsOn("192.0.2.11")).toEqual([]);
});

test("a resource that was renamed keeps its name also when it is created again", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  const { runnerName: _, ...unnamed } = runnerInputs(network, "a", "192.0.2.11");
  const renamed = await checked(runners, "new", unnamed, old);
  await runners.update("training/a", old, renamed);
  expect(await checked(runners, "new", unnamed)).toMatchObject({ runnerName: "a", runnerId: 1 });
});

test("an unfinished create is still drift after a refresh", async () => {
  const network = await makeNetwork();
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  fleet.run = async () => ({ code: 1, stdout: "", stderr: "" });
  const error = (await runners.create(inputs).catch((e: unknown) => e)) as PartialFailure;
  expect(error.message).toContain("VERIFY_FAILED");
  const { props } = await runners.read("training/a", error.properties);
  const failure = expect.stringContaining("do not get through");
  expect(props.drift).toEqual([expect.stringMatching(/^not applied: VERIFY_FAILED: /), failure]);
  fleet.run = async () => ({ code: 0, stdout: "", stderr: "" });
  const { props: later } = await runners.read("training/a", props);
  expect(later.drift).toEqual([expect.stringMatching(/^not applied: VERIFY_FAILED: /)]);
  expect(await runners.diff(props, inputs)).toMatchObject({ changes: true });
});

test("an address with different ports or jump hosts is a different host", async () => {
  const network = await makeNetwork();
  await makeRunner(network, "a", "192.0.2.50", { connection: { host: "192.0.2.50", port: 2201 } });
  const second = runnerInputs(network, "b", "192.0.2.50", { connection: { host: "192.0.2.50", port: 2202 } });
  expect(await checked(runners, "b", second)).toMatchObject({ runnerId: 2 });
  const third = runnerInputs(network, "c", "192.0.2.50", { connection: { host: "192.0.2.50", port: 2201 } });
  const { failures } = await runners.check({ owner: owner("c"), dryRun: true, program: "main" }, undefined, third);
  expect(failures[0]?.reason).toMatch(/^DEVICE_FOREIGN/);
  const hub = runnerInputs(network, "d", "x", { connection: { host: "192.0.2.1", port: 22 } });
  expect(
    (await runners.check({ owner: owner("d"), dryRun: true, program: "main" }, undefined, hub)).failures[0]?.reason,
  ).toContain("the network's hub");
});

test("the state has the version that the claim or the update made, not a later one of another preview", async () => {
  const network = await makeNetwork();
  const versions: string[] = [];
  /** Runs a preview of another stack directly after each commit. */
  const followed = (method: "claim" | "change") => {
    const real = pool[method].bind(pool) as (...args: unknown[]) => Promise<Lease>;
    return vi.spyOn(pool, method).mockImplementation(async (...args: unknown[]) => {
      const lease = await real(...args);
      const { version, epoch } = await pool.ipam.describe();
      versions.push(`${version}-${epoch}`);
      await pool.offer({ pool: "network/training", owner: `preview ${version}`, type: "RunnerSubnet" });
      return lease;
    });
  };
  const spies = [followed("claim"), followed("change")];
  const made = await makeRunner(network, "a", "192.0.2.11");
  const renamed = await checked(runners, "new", runnerInputs(network, "a", "192.0.2.11"), made);
  const updated = await runners.update("training/a", made, renamed);
  const [claim, _tunnelEnd, update] = versions;
  expect([made.storeVersion, updated.storeVersion]).toEqual([claim, update]);
  for (const spy of spies) spy.mockRestore();
});
