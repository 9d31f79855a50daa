import { expect, test } from "vitest";
import { openIpam } from "../../../provider/ipam";
import { findSpec } from "../../../provider/ipam/interface";
import { RunPlan } from "../../../provider/ipam/run-plan";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import { resourceOf } from "../../../provider/resources";
import { FakeFleet, fakeDependencies } from "./fake-fleet";

/** A network with room for three runners, and a fourth runner. */
const START = Date.parse("2030-01-01T00:00:00Z");

async function full(inputs: Values) {
  let now = START;
  const pool = new RunPlan(await openIpam("memory:", { offerTtl: 3600, quarantine: 0, clock: () => now }));
  const deps = fakeDependencies(new FakeFleet(), pool);
  const [networks, runners] = ["OverlayNetwork", "RunnerSubnet"].map((type) => new Lifecycle(resourceOf(type), deps));
  const hubConnection = { host: "192.0.2.1" };
  const check = (lifecycle: Lifecycle, name: string, news: Values, dryRun = false) =>
    lifecycle.check({ owner: `org/urn:pulumi:dev::p::overlay:index:X::${name}`, dryRun }, undefined, news);
  const create = async (lifecycle: Lifecycle, name: string, news: Values) =>
    (await lifecycle.create((await check(lifecycle, name, news)).inputs)).props;
  await create(networks!, "training", { hubConnection, subnets: "10.0.0.0/15/2/15", ...inputs });
  const { settings } = (await findSpec(pool.ipam, "network/training"))!.data as unknown as { settings: Values };
  const runner = (name: string, host: string): Values => ({
    network: settings,
    connection: { host },
    hubConnection,
    runnerName: name,
  });
  const made: Values[] = [];
  for (const [i, name] of ["a", "b", "c"].entries()) {
    made.push(await create(runners!, name, runner(name, `192.0.2.1${i}`)));
    now += 60_000;
  }
  return {
    pool,
    pass: (seconds: number) => (now += seconds * 1000),
    /** A refresh of a runner, which sets `lastSeen`. */
    refresh: (i: number) => runners!.read("", made[i]!),
    preview: () => check(runners!, "d", runner("d", "192.0.2.14"), true),
    create: () => create(runners!, "d", runner("d", "192.0.2.14")),
    /** The values that the next up would give it, now that its lease is gone. */
    again: async (i: number) => {
      const { owner, leaseId: _, uid: __, ...olds } = made[i]!;
      const name = ["a", "b", "c"][i]!;
      const caller = { owner: String(owner), dryRun: false };
      return runners!.check(caller, { ...olds, owner }, runner(name, `192.0.2.1${i}`));
    },
    release: async (i: number) => runners!.delete(made[i]!),
    drifted: async (i: number) => (await runners!.diff(made[i]!, made[i]!)).replaces,
  };
}

test("when all ids are taken, preview fails and names the longest unseen runners first, with their times", async () => {
  const { preview, refresh } = await full({});
  await refresh(0);
  const { failures } = await preview();
  expect(failures).toHaveLength(1);
  expect(failures[0]!.reason).toMatch(
    /^RUNNER_IDS_EXHAUSTED: No runner id is free in network training \(1-3\)\. Holders, longest unseen first: 2 \S+::b \(last seen 2030-01-01T00:01:00Z\); 3 \S+::c \(last seen 2030-01-01T00:02:00Z\); 1 \S+::a \(last seen 2030-01-01T00:03:00Z\)\./,
  );
});

test("reclaimInactive: the id of the longest unseen runner is reclaimed, in preview as in up; ids of active runners are not", async () => {
  const { pool, preview, create, refresh, pass, drifted, again, release } = await full({
    onExhausted: "reclaimInactive",
    inactiveAfter: 3600,
  });
  pass(3000);
  expect((await preview()).failures[0]!.reason).toMatch(/^RUNNER_IDS_EXHAUSTED/);
  await refresh(0);
  pass(1000);
  expect((await preview()).inputs.runnerId).toBe(2);
  expect((await pool.ipam.find({ pool: "network/training", value: 2n }))!.owner).toMatch(/::b$/); // a preview changes no lease
  expect((await create()).runnerId).toBe(2);
  expect(await drifted(1)).toEqual(["leaseId"]);
  expect(await drifted(0)).toEqual([]);
  // A runner that lost its id gets another one, as soon as one is free.
  expect((await again(0)).inputs.runnerId).toBe(1);
  await release(0);
  expect((await again(1)).inputs.runnerId).toBe(1);
});
