import { expect, test } from "vitest";
import { buildRequiredLease } from "../../../cli/stack-export";
import type { Values } from "../../../provider/lifecycle/values";
import { readTunnelEnd } from "../../../provider/network/plan/tunnels/tunnel-end";
import { checked, fleet, makeNetwork, makeRunner, owner, pool, runnerInputs, runners, setUp } from "./network-fixture";

/** What the leases of a network and of its runners hold of their hosts. */
setUp();

const [HUB, A, B] = ["192.0.2.1", "192.0.2.11", "192.0.2.12"] as const;

const leaseOf = async (from: string, { leaseId }: Values) =>
  (await pool.ipam.find({ pool: from, leaseId: String(leaseId) }))!;

const endOf = async (runner: Values) => readTunnelEnd(await leaseOf("network/training", runner));

test("with VXLAN: tunnel, address, port and the base of its VNI", async () => {
  const network = await makeNetwork({ vxlanPort: 4790 });
  const runner = await makeRunner(network, "a", A);
  expect(readTunnelEnd(await leaseOf("space/default", network))).toEqual({
    tunnel: "vxlan",
    vniBase: 100,
    underlayIp: HUB,
    port: 4790,
  });
  expect(await endOf(runner)).toEqual({ tunnel: "vxlan", vniBase: 100, underlayIp: A, port: 4790 });
});

test("with WireGuard also the key; the state has a copy, from which a lost store is recovered", async () => {
  const network = await makeNetwork({ tunnel: "wireguard" });
  const runner = await makeRunner(network, "a", A);
  const end = {
    tunnel: "wireguard",
    underlayIp: A,
    port: 51820,
    keyGeneration: 0,
    publicKey: fleet.keys.get(A),
  };
  expect(await endOf(runner)).toEqual(end);
  const lease = buildRequiredLease({
    source: "export",
    type: "RunnerSubnet",
    props: { ...runner, owner: owner("a"), uid: String(runner.uid), leaseId: String(runner.leaseId) },
  });
  expect(lease.data).toEqual({ name: "a", tunnel: end });
  expect(lease.names).toContain(`key/${fleet.keys.get(A)}`);
});

test("it stays in a lease while an update fails, and follows a host with a new key", async () => {
  const network = await makeNetwork({ tunnel: "wireguard" });
  const runner = await makeRunner(network, "a", A);
  const before = await endOf(runner);
  fleet.keys.set(A, fleet.keys.get(HUB)!.replace(/^./, "x"));
  fleet.refuses.add(A);
  const news = await checked(runners, "a", { ...runnerInputs(network, "a", A), masquerade: false }, runner);
  await expect(runners.update("training/a", runner, news)).rejects.toThrow(/refuses/);
  expect(await endOf(runner)).toEqual(before);
  fleet.refuses.clear();
  await runners.update("training/a", runner, news);
  expect(await endOf(runner)).toEqual({ ...before, publicKey: fleet.keys.get(A) });
  const { names } = await leaseOf("network/training", runner);
  expect(names?.filter((name) => name.startsWith("key/"))).toEqual([`key/${fleet.keys.get(A)}`]);
});

test("a host with the key of another one is refused before anything changes there", async () => {
  const network = await makeNetwork({ tunnel: "wireguard" });
  await makeRunner(network, "a", A);
  fleet.keys.set(B, fleet.keys.get(A)!);
  fleet.conversations.length = 0;
  await expect(makeRunner(network, "b", B)).rejects.toThrow(
    new RegExp(`KEY_DUPLICATE: The public key \\S+ of this host is also that of ${owner("a")}: one of the disks`),
  );
  expect(fleet.conversations).toEqual([]);
});
