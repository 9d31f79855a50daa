import { beforeEach, expect, test } from "vitest";
import { formatIp, parseIp } from "../../../provider/addressing/ip";
import { findSpec } from "../../../provider/ipam/interface";
import type { Values } from "../../../provider/lifecycle/values";
import { Stage } from "./stage";

/** One runner, 10.128.64.0/18, with containers on its Docker network that have no lease. */
const HOST = "192.0.2.11";
let stage: Stage;
let runner: Values;

const container = (name: string, ...addresses: string[]) => ({ name, running: addresses.length > 0, addresses });
const docker = (...containers: ReturnType<typeof container>[]) => stage.fleet.containers.set(HOST, containers);
const refresh = async (): Promise<Values> => (await stage.of("RunnerSubnet").read("id", runner)).props;
const again = (olds: Values): Promise<Values> =>
  stage.change("RunnerSubnet", "r1", olds, {
    network: "training",
    connection: { host: HOST },
    hubConnection: { host: "192.0.2.1" },
  });
const leases = async (): Promise<string[]> =>
  (await stage.pool.ipam.leases("runner/training/r1")).map(
    ({ ranges, state, usedBy, owner }) =>
      `${ranges.map(({ first }) => formatIp(first)).join(" ")} ${state} ${usedBy ?? ""} ${owner}`,
  );

beforeEach(async () => {
  stage = await Stage.up();
  await stage.network();
  runner = await stage.runner("r1", HOST);
});

test("a refresh shows the address of a container without a lease, and only offers it", async () => {
  docker(container("alpha", "10.128.64.9"));
  expect((await refresh()).drift).toEqual(["192.0.2.11: container alpha has 10.128.64.9, which is not reserved"]);
  expect(await leases()).toEqual(["10.128.64.9 offered alpha docker/training/r1/alpha"]);
});

test("the next up commits the lease in state used, once", async () => {
  docker(container("alpha", "10.128.64.9"));
  runner = await again(await refresh());
  expect(await leases()).toEqual(["10.128.64.9 used alpha docker/training/r1/alpha"]);
  expect((await refresh()).drift).toEqual([]);
  expect(await stage.of("RunnerSubnet").diff(runner, runner)).toMatchObject({ changes: false });
});

test("from then on the address is not given to other owners, also not by value", async () => {
  docker(container("alpha", "10.128.64.9"));
  runner = await again(await refresh());
  expect(await stage.refusal("IPReservation", "web", { runner: "training/r1", ip: "10.128.64.9" })).toMatch(
    /^IP_IN_USE: Address 10\.128\.64\.9 of runner r1 of network training is used by docker\/training\/r1\/alpha/,
  );
});

test("a container with a lease, with an address of Docker's range, or without one, is no drift", async () => {
  await stage.make("IPReservation", "web", { runner: "training/r1", ip: "10.128.64.9" });
  docker(container("web", "10.128.64.9"), container("picked", "10.128.112.3"), container("stopped"));
  expect((await refresh()).drift).toEqual([]);
  expect(await leases()).toEqual([expect.stringMatching(/^10\.128\.64\.9 reserved {2}org/)]);
});

test("a preview's offer to another owner is kept by a refresh, and ended by an up", async () => {
  await stage.preview("IPReservation", "web", { runner: "training/r1", ip: "10.128.64.9" });
  docker(container("alpha", "10.128.64.9"));
  const refreshed = await refresh();
  expect(await leases()).toEqual([expect.stringMatching(/^10\.128\.64\.9 offered {2}org/)]);
  await again(refreshed);
  expect(await leases()).toEqual(["10.128.64.9 used alpha docker/training/r1/alpha"]);
});

test("a refresh releases nothing: the lease of a removed container stays until it is released", async () => {
  docker(container("alpha", "10.128.64.9"));
  runner = await again(await refresh());
  docker();
  expect((await refresh()).drift).toEqual([]);
  expect(await leases()).toEqual(["10.128.64.9 used alpha docker/training/r1/alpha"]);
});

test("leases that were imported for containers are released with the runner; other leases prevent its delete", async () => {
  docker(container("alpha", "10.128.64.9"));
  runner = await again(await refresh());
  const values = [{ first: parseIp("10.128.64.20"), last: parseIp("10.128.64.20") }];
  const other = await stage.pool.claim({
    pool: "runner/training/r1",
    owner: "overlayctl/x",
    type: "IPReservation",
    values,
  });
  await expect(stage.of("RunnerSubnet").delete(runner)).rejects.toThrow("POOL_IN_USE");
  expect(await leases()).toContain("10.128.64.9 used alpha docker/training/r1/alpha");
  await stage.pool.release(other.pool, other.leaseId);
  await stage.of("RunnerSubnet").delete(runner);
  expect(await findSpec(stage.pool.ipam, "runner/training/r1")).toBeUndefined();
});

test("a runner that cannot be deleted yet keeps the leases of its containers", async () => {
  docker(container("alpha", "10.128.64.9"));
  runner = await again(await refresh());
  stage.fleet.down.add(HOST);
  await expect(stage.of("RunnerSubnet").delete(runner)).rejects.toThrow("SSH_UNREACHABLE");
  expect(await leases()).toEqual(["10.128.64.9 used alpha docker/training/r1/alpha"]);
});
