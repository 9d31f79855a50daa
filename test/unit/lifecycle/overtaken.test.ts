import { expect, test } from "vitest";
import { readLeaseData } from "../../../provider/lifecycle/lease";
import type { PartialFailure } from "../../../provider/lifecycle/lifecycle";
import type { Values } from "../../../provider/lifecycle/values";
import {
  checked,
  fleet,
  makeNetwork,
  makeRunner,
  netInputs,
  networks,
  pool,
  runnerInputs,
  runners,
  setUp,
} from "./network-fixture";

/** The list of clean hosts in a lease, when runs fail or a later run takes the lease over. */
setUp();

const [HUB, A, MISTYPED] = ["192.0.2.1", "192.0.2.11", "192.0.2.99"] as const;

const propertiesOf = async (failing: Promise<unknown>): Promise<Values> =>
  ((await failing.catch((error: unknown) => error)) as PartialFailure).properties;

const dataIn = async ({ leaseId }: Values) =>
  readLeaseData((await pool.ipam.find({ pool: "network/training", leaseId: String(leaseId) }))!);

/** Makes the next call of this method of the pool wait for `meanwhile`. */
function delayNext(method: "close" | "release" | "change", meanwhile: () => Promise<unknown>): void {
  const on = method === "close" ? pool.ipam : pool;
  const real = (on[method as keyof typeof on] as (...args: unknown[]) => Promise<unknown>).bind(on);
  const delayed = async (...args: unknown[]): Promise<unknown> => {
    Object.assign(on, { [method]: real });
    await meanwhile();
    return real(...args);
  };
  Object.assign(on, { [method]: delayed });
}

test("a host is still to be cleaned after a move to a mistyped host and an up back that did not reach it", async () => {
  const network = await makeNetwork();
  const old = await makeRunner(network, "a", A);
  fleet.down.add(MISTYPED);
  const moved = await checked(runners, "a", runnerInputs(network, "a", MISTYPED), old);
  const afterMove = await propertiesOf(runners.update("training/a", old, moved));
  expect(afterMove.pendingCleanup).toEqual([`runner ${A} 22`]);
  fleet.down.add(A);
  fleet.wasWritten = () => false; // as in a later run
  const back = await checked(runners, "a", runnerInputs(network, "a", A), afterMove);
  const afterReturn = await propertiesOf(runners.update("training/a", afterMove, back));
  expect(await dataIn(afterReturn)).not.toHaveProperty("clean");
  fleet.down.clear();
  await runners.delete(afterReturn);
  expect(fleet.itemsOn(A)).toEqual([]);
});

test("a delete that an up overtook does not write its list of clean hosts over the up's", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", A);
  const inputs = await checked(runners, "a", runnerInputs(network, "a", A), runner);
  const apply = fleet.apply;
  let updated: Values = {};
  let reportCleaned = (): void => {};
  const cleaned = new Promise<void>((resolve) => {
    reportCleaned = resolve;
  });
  fleet.apply = async (connection, work) => {
    if (connection.host === HUB) {
      await cleaned;
      fleet.apply = apply;
      updated = await runners.update("training/a", runner, inputs);
    }
    const seen = await apply(connection, work);
    if (connection.host === A) reportCleaned();
    return seen;
  };
  await expect(runners.delete(runner)).rejects.toThrow("LEASE_FENCED");
  expect(await dataIn(updated)).not.toHaveProperty("clean");
  await runners.delete(updated);
  expect(fleet.itemsOn(A)).toEqual([]);
});

test("a failed up that another overtook does not write its list of clean hosts over the other's", async () => {
  const network = await makeNetwork();
  fleet.down.add(A);
  const inputs = await checked(runners, "a", runnerInputs(network, "a", A));
  const state = await propertiesOf(runners.create(inputs));
  const ask = fleet.ask;
  let updated: Values = {};
  fleet.ask = async (connection, question) => {
    if (connection.host !== A) return ask(connection, question);
    fleet.ask = ask;
    fleet.down.clear();
    updated = await runners.update("training/a", state, inputs);
    fleet.down.add(A);
    fleet.wasWritten = () => false; // as in another process
    return ask(connection, question);
  };
  await expect(runners.update("training/a", state, inputs)).rejects.toThrow("SSH_UNREACHABLE");
  fleet.down.clear();
  expect(await dataIn(updated)).not.toHaveProperty("clean");
  await runners.delete(updated);
  expect(fleet.itemsOn(A)).toEqual([]);
});

test("a delete does not begin with a list of clean hosts that an up has changed since it was read", async () => {
  const network = await makeNetwork();
  fleet.down.add(A);
  const inputs = await checked(runners, "a", runnerInputs(network, "a", A));
  const state = await propertiesOf(runners.create(inputs));
  fleet.down.clear();
  delayNext("change", () => runners.update("training/a", state, inputs));
  await expect(runners.delete(state)).rejects.toThrow("LEASE_FENCED");
  await runners.delete(state);
  expect(fleet.itemsOn(A)).toEqual([]);
});

test("a delete that an up overtook at its end does not release the lease", async () => {
  const network = await makeNetwork();
  const runner = await makeRunner(network, "a", A);
  const inputs = await checked(runners, "a", runnerInputs(network, "a", A), runner);
  delayNext("release", () => runners.update("training/a", runner, inputs));
  await expect(runners.delete(runner)).rejects.toThrow("LEASE_FENCED");
  expect(await runners.diff(runner, inputs)).toMatchObject({ changes: false });
});

test("a delete that an up overtook does not close the network's pool", async () => {
  const network = await makeNetwork();
  const inputs = await checked(networks, "training", netInputs(), network);
  delayNext("close", () => networks.update("training", network, inputs));
  await expect(networks.delete(network)).rejects.toThrow("LEASE_FENCED");
  expect(await makeRunner(network, "a", A)).toMatchObject({ runnerId: 1 });
});
