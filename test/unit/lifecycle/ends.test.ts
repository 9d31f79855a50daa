import { expect, test } from "vitest";
import { openIpam } from "../../../provider/ipam";
import { RunPlan } from "../../../provider/ipam/run-plan";
import type { PartialFailure } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import {
  checked,
  deps,
  fleet,
  makeNetwork,
  makeRunner,
  netInputs,
  networks,
  owner,
  pool,
  runnerInputs,
  runners,
  setUp,
  warnings,
} from "./network-fixture";

/** Deletes, lost leases, and runs that another run has overtaken. */
setUp();

test("delete removes everything; the delete of a network with runners is refused", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  await expect(networks.delete(network)).rejects.toThrow(/POOL_IN_USE: .*a/);
  expect(fleet.itemsOn("192.0.2.1")).toContain("link overlay-hub");
  await runners.delete(runner);
  await networks.delete(network);
  expect([...fleet.itemsOn("192.0.2.1"), ...fleet.itemsOn("192.0.2.11")]).toEqual([]);
  expect(await pool.ipam.leases("space/default")).toEqual([]);
  expect(await pool.ipam.admin.fsck()).toEqual([]);
});

test("an unreachable host blocks delete, or is forgotten and its values stay reserved", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  await expect(runners.delete(runner)).rejects.toThrow(
    /^SSH_UNREACHABLE: .* run `pulumi config set overlay:unreachableOnDelete forget` and destroy again/,
  );
  deps.unreachableOnDelete = "forget";
  await runners.delete(runner);
  expect(warnings.at(-1)).toMatch(/Its addresses stay reserved.*`overlayctl gc --forgotten 192\.0\.2\.11 --yes`/);
  const [lease] = await pool.ipam.leases("network/training");
  expect(lease).toMatchObject({ owner: `forgotten/${owner("a")}`, data: { name: "a", forgotten: ["192.0.2.11"] } });
  expect(await makeRunner(network, "b", "192.0.2.12")).toMatchObject({ runnerId: 2 });
});

test("an unreachable host whose lease is gone blocks delete with the same advice, or is forgotten", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  await pool.release("network/training", String(runner.leaseId));
  fleet.down.add("192.0.2.11");
  await expect(runners.delete(runner)).rejects.toThrow(
    /^SSH_UNREACHABLE: .* run `pulumi config set overlay:unreachableOnDelete forget` and destroy again\.$/,
  );
  deps.unreachableOnDelete = "forget";
  await runners.delete(runner);
  expect(warnings.at(-1)).toMatch(/^SSH_UNREACHABLE: 192\.0\.2\.11 .* Nothing is reserved for it/);
  expect(fleet.itemsOn("192.0.2.1")).not.toContain("link ovl1");
});

test("a lost store allocates nothing", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  const other = new RunPlan(await openIpam("memory:", { offerTtl: 3600, quarantine: 0 }));
  deps.pool = async () => other;
  await expect(networks.diff(network, network)).rejects.toThrow(/^STORE_LOST/);
  await expect(runners.diff(runner, runner)).rejects.toThrow(/^STORE_LOST/);
  await expect(runners.delete(runner)).rejects.toThrow(/^STORE_LOST/);
  const { failures } = await runners.check(
    { owner: owner("b"), dryRun: true, program: "main" },
    undefined,
    runnerInputs(network, "b", "192.0.2.12"),
  );
  expect(failures[0]?.reason).toMatch(/^POOL_NOT_FOUND/);
});

test("a lost lease is claimed again while the network stays up, and work under the old lease id is fenced off", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", "192.0.2.11");
  await pool.release("network/training", String(old.leaseId));
  expect((await runners.read("training/a", old)).props.drift).toEqual([
    `lease ${old.leaseId} is no longer in the store`,
  ]);
  expect(await runners.diff(old, old)).toMatchObject({ changes: true, hasNewInputs: false, replaces: ["leaseId"] });
  await expect(runners.update("training/a", old, { ...old, mtu: 1400 })).rejects.toThrow("LEASE_FENCED");
  const fresh = await makeRunner(network, "a", "192.0.2.11");
  expect(fresh).toMatchObject({ runnerId: 1 });
});

test("a run that was overtaken writes nothing, neither by update nor by delete", async () => {
  const network = await makeNetwork();
  const props = await makeRunner(network, "a", "192.0.2.11");
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11", { mtu: 1300 }), props);
  const ask = fleet.ask;
  let wake = (): void => {};
  const waited = new Promise<void>((resolve) => {
    wake = resolve;
  });
  let sleeping: Promise<unknown> | undefined;
  await new Promise<void>((resolve) => {
    fleet.ask = async (...args) => {
      resolve();
      await waited;
      return ask(...args);
    };
    sleeping = runners.update("training/a", props, inputs).catch((e: unknown) => e);
  });
  fleet.ask = ask;
  await runners.update(
    "training/a",
    props,
    await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11", { mtu: 1400 }), props),
  );
  fleet.takeWrites();
  wake();
  expect(String(await sleeping)).toContain("LEASE_FENCED");
  expect(fleet.takeWrites()).toEqual([]);
});

test("with forgotten hosts a whole network can be destroyed, and its range stays reserved", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  deps.unreachableOnDelete = "forget";
  await runners.delete(runner);
  await networks.delete(network);
  expect(fleet.itemsOn("192.0.2.1")).toEqual([]);
  const { failures } = await networks.check(
    { owner: owner("again"), dryRun: true, program: "main" },
    undefined,
    netInputs(),
  );
  expect(failures[0]?.reason).toMatch(/^POOL_OVERLAP: .*`overlayctl gc --forgotten`/);
  expect(warnings.at(-1)).toMatch(
    /^X training is deleted, but its range stays reserved, .*`overlayctl gc --forgotten`/,
  );
});

test("a delete that fails leaves the network usable", async () => {
  const network = await makeNetwork();
  fleet.down.add("192.0.2.1");
  await expect(networks.delete(network)).rejects.toThrow("SSH_UNREACHABLE");
  fleet.down.clear();
  expect(await makeRunner(network, "a", "192.0.2.11")).toMatchObject({ runnerId: 1 });
});

test("a delete that fails half way is an update in the next diff; one that was refused changes nothing", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", "192.0.2.11");
  await expect(networks.delete(network)).rejects.toThrow("POOL_IN_USE");
  expect(await networks.diff(network, network)).toMatchObject({ changes: false });
  fleet.down.add("192.0.2.11");
  await expect(runners.delete(runner)).rejects.toThrow("SSH_UNREACHABLE");
  fleet.down.clear();
  expect(await runners.diff(runner, runner)).toMatchObject({ changes: true, replaces: [] });
  const news = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"), runner);
  const done = await runners.update("training/a", runner, news);
  expect(fleet.itemsOn("192.0.2.1")).toContain("link ovl1");
  expect(await runners.diff(done, news)).toMatchObject({ changes: false });
});

test("a mistyped host that was never written to is not cleaned, neither when it is corrected nor by delete", async () => {
  const network = await makeNetwork();
  fleet.down.add("192.0.2.99");
  const mistyped = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.99"));
  const failed = await runners.create(mistyped).catch((error: PartialFailure) => error);
  const state = (failed as PartialFailure).properties;
  fleet.contacted.length = 0;
  const corrected = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"), state);
  const done = await runners.update("training/a", state, corrected);
  expect(fleet.contacted).not.toContain("192.0.2.99");
  expect([done.pendingCleanup, warnings]).toEqual([[], []]);

  const other = await checked(runners, "b", runnerInputs(network, "b", "192.0.2.99"));
  const unmade = await runners.create(other).catch((error: PartialFailure) => error);
  await runners.delete((unmade as PartialFailure).properties);
});

test("a host that was written to before is cleaned, also after an up that did not reach it", async () => {
  const runner = await makeRunner(await makeNetwork(), "a", "192.0.2.11");
  fleet.down.add("192.0.2.11");
  const changed = await checked(
    runners,
    "a",
    { ...runnerInputs(runner.network as Values, "a", "192.0.2.11"), mtu: 1400 },
    runner,
  );
  fleet.wasWritten = () => false; // as in a later run
  const failed = await runners.update("training/a", runner, changed).catch((error: PartialFailure) => error);
  const state = (failed as PartialFailure).properties;
  fleet.down.clear();
  const moved = await checked(runners, "a", runnerInputs(runner.network as Values, "a", "192.0.2.12"), state);
  await runners.update("training/a", state, moved);
  expect(fleet.itemsOn("192.0.2.11")).toEqual([]);
});

test("a host that a killed up has written to is cleaned, though the state is older", async () => {
  const network = await makeNetwork();
  fleet.down.add("192.0.2.11");
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  const failed = await runners.create(inputs).catch((error: PartialFailure) => error);
  const state = (failed as PartialFailure).properties;
  fleet.down.clear();
  await runners.update("training/a", state, inputs); // its result is not saved
  expect(fleet.itemsOn("192.0.2.11")).not.toEqual([]);
  await runners.delete(state);
  expect([...fleet.itemsOn("192.0.2.1"), ...fleet.itemsOn("192.0.2.11")]).not.toContain("link ovl1");
});

test("a host that a killed create has written to is cleaned, though the next create did not reach it", async () => {
  const network = await makeNetwork();
  const inputs = await checked(runners, "a", runnerInputs(network, "a", "192.0.2.11"));
  await runners.create(inputs); // its result is not saved
  fleet.down.add("192.0.2.11");
  fleet.wasWritten = () => false; // as in a later run
  const failed = await runners.create(inputs).catch((error: PartialFailure) => error);
  await expect(runners.delete((failed as PartialFailure).properties)).rejects.toThrow("SSH_UNREACHABLE");
});
