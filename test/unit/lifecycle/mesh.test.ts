import { describe, expect, test } from "vitest";
import { Lifecycle } from "../../../provider/lifecycle/lifecycle";
import { MeshRunners } from "../../../provider/lifecycle/mesh";
import { readDirectRoutes } from "../../../provider/lifecycle/mesh-peers";
import type { Values } from "../../../provider/lifecycle/values";
import type { Item, Link } from "../../../provider/network/model/items";
import { resourceOf } from "../../../provider/resources";
import {
  checked,
  deps,
  fleet,
  makeNetwork,
  makeRunner,
  netInputs,
  networks,
  newRun,
  owner,
  pool,
  runnerInputs,
  runners,
  setUp,
  warnings,
} from "./network-fixture";

/** The peers of runners in a mesh, on hosts in memory: which ups change them, and what a diff shows. */
setUp();

const MESH = { tunnel: "wireguard", topology: "mesh" };
const HOSTS = { a: "192.0.2.11", b: "192.0.2.12", c: "192.0.2.13" } as const;

/** Peers answer probes of a host that they have as a peer, except these ids. */
function answerProbes(...silent: number[]): void {
  fleet.run = async ({ host }, script) => {
    const hasPeer = (id: string): boolean =>
      [...fleet.items].some(
        ([, items]) =>
          [...items.values()].some(
            (item) => item.kind === "address" && item.address === `fe80::1:${Number(id).toString(16)}/64`,
          ) &&
          ([0, 1].some((slot) => items.has(`peer ${fleet.keys.get(host)} of ovlM${slot}`)) ||
            [...items.values()].some((item) => item.kind === "vxpeer" && item.remote === host)),
      );
    const ids = [...script.matchAll(/echo (\d+)\)/g)]
      .map(([, id]) => id)
      .filter((id) => !silent.includes(Number(id)) && hasPeer(id!));
    return { code: 0, stdout: ids.join("\n"), stderr: "" };
  };
}

/** Ids of the runners to which a runner sends directly, as the pool has it, and as its host has routes. */
async function routesOf({ leaseId }: Values, host: string): Promise<[number[], number[]]> {
  const lease = (await pool.ipam.find({ pool: "network/training", leaseId: String(leaseId) }))!;
  const stored = (readDirectRoutes(lease) ?? []).map((route) => Number(route.split(":")[0]));
  const routes = [...(fleet.items.get(host)?.values() ?? [])].flatMap((item) =>
    item.kind === "route" && /M[01V]$/.test(item.dev ?? "") ? [Number(item.dst.split(".")[2]) / 64] : [],
  );
  return [stored.sort(), routes.sort()];
}

/** What a diff says of a runner whose inputs stay as they are. */
async function diffOf(runner: Values): Promise<{ changes: boolean; notes: string[] }> {
  const notes: string[] = [];
  deps.note = (text) => notes.push(text);
  const { changes } = await runners.diff(runner, runner);
  return { changes, notes };
}

test("a runner that joins gets routes to all, and all to it; a runner that leaves is removed from all", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  const b = await makeRunner(network, "b", HOSTS.b);
  const c = await makeRunner(network, "c", HOSTS.c);
  expect(await routesOf(a, HOSTS.a)).toEqual([
    [2, 3],
    [2, 3],
  ]);
  expect(await routesOf(b, HOSTS.b)).toEqual([
    [1, 3],
    [1, 3],
  ]);
  expect(await routesOf(c, HOSTS.c)).toEqual([
    [1, 2],
    [1, 2],
  ]);
  await runners.delete(b);
  expect(await routesOf(a, HOSTS.a)).toEqual([[3], [3]]);
  expect(await diffOf(a)).toEqual({ changes: false, notes: [] });
  expect(warnings).toEqual([]);
});

test("a host that does not answer is a warning; a diff names it without contact, and its next up changes it", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  fleet.down.add(HOSTS.a);
  answerProbes(1);
  const b = await makeRunner(network, "b", HOSTS.b);
  expect([...new Set(warnings)]).toEqual([
    expect.stringMatching(/^X a: its direct routes to other runners could not be changed; .*SSH_UNREACHABLE/),
    expect.stringMatching(/^X b: no data passes directly to a, so packets to there go by the hub\./),
  ]);
  expect(await routesOf(b, HOSTS.b)).toEqual([[], []]);
  fleet.contacted.splice(0);
  expect(await diffOf(a)).toEqual({ changes: true, notes: ["X a: its host has no direct route to b."] });
  expect(await diffOf(b)).toEqual({ changes: true, notes: ["X b: its host has no direct route to a."] });
  expect(fleet.contacted).toEqual([]);
  fleet.down.clear();
  answerProbes();
  await runners.update("training/a", a, await checked(runners, "a", runnerInputs(network, "a", HOSTS.a), a));
  expect(await routesOf(a, HOSTS.a)).toEqual([[2], [2]]);
  expect(await routesOf(b, HOSTS.b)).toEqual([[1], [1]]);
});

test("a runner that is still joining has its peers ask again, so they do not warn that it is silent", async () => {
  answerProbes();
  const [answer, order]: [typeof fleet.run, string[]] = [fleet.run, []];
  fleet.run = async (connection, script) => {
    order.push(connection.host);
    const isLate = connection.host === HOSTS.a && order.filter((host) => host === HOSTS.b).length < 2;
    return isLate ? { code: 0, stdout: "", stderr: "" } : answer(connection, script);
  };
  const network = await makeNetwork(MESH);
  const [a, b] = await Promise.all([makeRunner(network, "a", HOSTS.a), makeRunner(network, "b", HOSTS.b)]);
  expect([await routesOf(a!, HOSTS.a), await routesOf(b!, HOSTS.b)]).toEqual([
    [[2], [2]],
    [[1], [1]],
  ]);
  expect(warnings).toEqual([]);
});

test("a route to a runner with another key is another one: it is used after data has passed over it", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  const b = await makeRunner(network, "b", HOSTS.b);
  fleet.keys.set(HOSTS.b, fleet.keys.get(HOSTS.a)!.replace(/^./, "x"));
  answerProbes(1, 2);
  const news = await checked(runners, "b", { ...runnerInputs(network, "b", HOSTS.b), masquerade: false }, b);
  await runners.update("training/b", b, news);
  expect(await routesOf(a, HOSTS.a)).toEqual([[], []]);
  expect(fleet.itemsOn(HOSTS.a)).toContain(`peer ${fleet.keys.get(HOSTS.b)} of ovlM0`);
});

test("a runner that says to have the key of another one takes no packets of it: those go by the hub", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  let a = await makeRunner(network, "a", HOSTS.a);
  await makeRunner(network, "b", HOSTS.b);
  const c = await makeRunner(network, "c", HOSTS.c);
  const findLease = async ({ leaseId }: Values) =>
    (await pool.ipam.find({ pool: "network/training", leaseId: String(leaseId) }))!;
  const claimKeyOf = async (host: string) => {
    const { leaseId, data } = (await findLease(c)) as unknown as { leaseId: string; data: { tunnel: Values } };
    const tunnel = { ...data.tunnel, publicKey: fleet.keys.get(host)! };
    await pool.ipam.change("network/training", leaseId, { data: { ...data, tunnel } as never });
  };
  const update = async (masquerade: boolean) => {
    const news = await checked(runners, "a", { ...runnerInputs(network, "a", HOSTS.a), masquerade }, a);
    a = await runners.update("training/a", a, news);
    return routesOf(a, HOSTS.a);
  };
  await claimKeyOf(HOSTS.b);
  expect(await update(false)).toEqual([[], []]);
  await claimKeyOf(HOSTS.a);
  expect(await update(true)).toEqual([[], []]);
});

test("twenty runners that join at once have all routes, in a few changes of each host", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const names = Array.from({ length: 20 }, (_, i) => `n${i}`);
  const made = await Promise.all(names.map((name, i) => makeRunner(network, name, `192.0.2.${100 + i}`)));
  for (const [i, runner] of made.entries()) expect((await routesOf(runner, `192.0.2.${100 + i}`))[0]).toHaveLength(19);
  const changes = names.map((_, i) => fleet.conversations.filter((text) => text === `apply 192.0.2.${100 + i}`).length);
  expect(Math.max(...changes)).toBeLessThan(20);
});

test("runners that join at once send no probe to a host that does not have them as peers yet", async () => {
  answerProbes();
  const answer = fleet.run;
  const silent: string[] = [];
  fleet.run = async (connection, script) => {
    const probed = [...script.matchAll(/echo (\d+)\)/g)].map(([, id]) => id!);
    const result = await answer(connection, script);
    const answered = result.stdout.split("\n");
    silent.push(...probed.filter((id) => !answered.includes(id)).map((id) => `${connection.host} to ${id}`));
    return result;
  };
  const network = await makeNetwork(MESH);
  const hosts = Array.from({ length: 8 }, (_, i) => `192.0.2.${100 + i}`);
  const made = await Promise.all(hosts.map((host, i) => makeRunner(network, `n${i}`, host)));
  expect(silent).toEqual([]);
  for (const [i, runner] of made.entries()) expect((await routesOf(runner, hosts[i]!))[0]).toHaveLength(7);
});

test("the id of a deleted runner stays reserved while a host may send directly to it", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  const b = await makeRunner(network, "b", HOSTS.b);
  fleet.down.add(HOSTS.a);
  await runners.delete(b);
  fleet.down.clear();
  expect(warnings.at(-1)).toBe(
    "X b is deleted, but its id stays reserved until an up changes or deletes X a: hosts may still send to it directly.",
  );
  expect((await makeRunner(network, "c", HOSTS.c)).runnerId).toBe(3);
  await runners.update("training/a", a, await checked(runners, "a", runnerInputs(network, "a", HOSTS.a), a));
  expect((await makeRunner(network, "d", HOSTS.b)).runnerId).toBe(2);
});

test("a destroy that deletes one runner after another, each in a process of its own, leaves no reserved id", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const made: Values[] = [];
  for (const [name, host] of Object.entries(HOSTS)) made.push(await makeRunner(network, name, host));
  const inNewProcess = (type: string) => new Lifecycle(resourceOf(type), { ...deps, mesh: new MeshRunners() });
  for (const runner of made.reverse()) await inNewProcess("RunnerSubnet").delete(runner);
  await inNewProcess("OverlayNetwork").delete(network);
  expect((await pool.ipam.pools({})).map(({ spec }) => spec.name)).toEqual(["space/default"]);
  expect([...fleet.owners.values()].flatMap((owners) => [...owners.keys()])).toEqual([]);
});

test("a change that leaves the mesh as it is contacts no host of it", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  const b = await makeRunner(network, "b", HOSTS.b);
  for (const runner of [a, b]) await diffOf(runner);
  fleet.contacted.splice(0);
  const news = await checked(runners, "a", runnerInputs(network, "a", HOSTS.a, { labels: { team: "red" } }), a);
  await runners.update("training/a", a, news);
  expect(fleet.contacted).toEqual([]);
});

test("runners that join at once change the routes of at most sixteen hosts at a time", async () => {
  answerProbes();
  const probe = fleet.run;
  const busy = new Set<string>();
  let most = 0;
  fleet.run = async (connection, script) => {
    if (!/ovlM[01V]/.test(script)) return probe(connection, script);
    busy.add(connection.host);
    most = Math.max(most, busy.size);
    await new Promise((resolve) => setTimeout(resolve, 5));
    busy.delete(connection.host);
    return probe(connection, script);
  };
  const network = await makeNetwork(MESH);
  const hosts = Array.from({ length: 24 }, (_, i) => `192.0.2.${100 + i}`);
  await Promise.all(hosts.map((host, i) => makeRunner(network, `n${i}`, host)));
  expect(most).toBe(16);
});

test("preview of a runner that joins names the hosts that get it as a peer", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  await makeRunner(network, "a", HOSTS.a);
  const notes: string[] = [];
  deps.note = (text) => notes.push(text);
  await checked(runners, "b", runnerInputs(network, "b", HOSTS.b), undefined, true);
  expect(notes).toEqual(["X b joins the mesh of 1 runners, whose hosts get it as a peer: a."]);
});

test("preview of a runner that leaves names the hosts that lose it as a peer", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  await makeRunner(network, "b", HOSTS.b);
  await makeRunner(network, "c", HOSTS.c);
  const notes: string[] = [];
  deps.note = (text) => notes.push(text);
  newRun();
  const declares = (declared: string): boolean => declared !== owner("b");
  const caller = { owner: owner("a"), dryRun: true, program: "main", declares };
  const { inputs } = await runners.check(caller, a, runnerInputs(network, "a", HOSTS.a));
  await runners.diff(a, inputs);
  expect(notes).toEqual(["X b leaves the mesh, if this up deletes it. These hosts lose it as a peer: X a, X c."]);
});

test("new credentials touch no host, unless the host lacks a peer", async () => {
  answerProbes();
  const network = await makeNetwork(MESH);
  const a = await makeRunner(network, "a", HOSTS.a);
  const login = { connection: { host: HOSTS.a, user: "ops" } };
  const news = await checked(runners, "a", { ...runnerInputs(network, "a", HOSTS.a), ...login }, a);
  const notesOf = async (): Promise<string[]> => {
    const notes: string[] = [];
    deps.note = (text) => notes.push(text);
    await runners.diff(a, news);
    return notes;
  };
  expect(await notesOf()).toEqual(["X a: credentials change, no host is touched."]);
  fleet.down.add(HOSTS.a);
  await makeRunner(network, "b", HOSTS.b);
  expect(await notesOf()).toEqual(["X a: its host has no direct route to b.", "X a: credentials change."]);
});

/** Direct routes of hosts to runners whose hosts do not have them as peers: their packets are lost. */
function lostRoutes(): string[] {
  const all = [...fleet.items].map(([host, items]) => ({ host, items: [...items.values()] }));
  const linkOf = (items: Item[], name?: string) => items.find((item) => item.kind === "link" && item.name === name);
  return all.flatMap(({ host, items }) =>
    items.flatMap((route) => {
      if (route.kind !== "route" || !/M[01V]$/.test(route.dev ?? "")) return [];
      const [, second, third] = route.dst.split(".").map(Number);
      const id = (second! - 128) * 4 + third! / 64;
      const peer = all.find((each) =>
        each.items.some((item) => item.kind === "address" && item.address === `fe80::1:${id}/64`),
      );
      const [link, name] = [linkOf(items, route.dev) as Link, route.dev];
      const accepts = peer?.items.some(
        (item) =>
          (item.kind === "vxpeer" && item.dev === name && item.remote === host) ||
          (item.kind === "wgpeer" && /M[01]$/.test(item.dev) && item.publicKey === link.wireguard?.publicKey),
      );
      return accepts ? [] : [`${host} to runner ${id} by ${name}`];
    }),
  );
}

describe.each([
  ["VXLAN to WireGuard", { tunnel: "vxlan", topology: "mesh" }, MESH],
  ["WireGuard to VXLAN", MESH, { tunnel: "vxlan", topology: "mesh" }],
  ["to new keys", MESH, { ...MESH, keyGeneration: 1 }],
  ["mesh to hub", MESH, { tunnel: "wireguard" }],
])("%s", (_, before, after) => {
  test.each([
    ["one after the other", false],
    ["at once", true],
  ])("six runners change %s: no host sends directly to one that has left", async (_, isParallel) => {
    answerProbes();
    const network = await makeNetwork(before);
    const names = ["a", "b", "c", "d", "e", "f"];
    const hostOf = (name: string): string => `192.0.2.${11 + names.indexOf(name)}`;
    const made = new Map<string, Values>();
    for (const name of names) made.set(name, await makeRunner(network, name, hostOf(name)));
    const lost: string[] = [];
    const { apply } = fleet;
    fleet.apply = async (connection, request) => {
      const result = await apply(connection, request);
      lost.push(...lostRoutes());
      return result;
    };
    newRun();
    const news = await checked(networks, "training", netInputs(after), network);
    const changed = { ...news, ...(await networks.update("training", network, news)) };
    const change = async (name: string): Promise<void> => {
      const olds = made.get(name)!;
      const inputs = await checked(runners, name, runnerInputs(changed, name, hostOf(name)), olds);
      await runners.diff(olds, inputs);
      await new Promise((resolve) => setImmediate(resolve)); // Pulumi compares several before it updates one
      made.set(name, await runners.update(`training/${name}`, olds, inputs));
    };
    if (isParallel) await Promise.all(names.map(change));
    else for (const name of names) await change(name);
    expect(lost).toEqual([]);
    const isMesh = "topology" in after;
    for (const name of names) expect((await routesOf(made.get(name)!, hostOf(name)))[0]).toHaveLength(isMesh ? 5 : 0);
  });
});

test.each([
  [{ topology: "mesh", vxlanPort: 65535 }, "vxlanPort must be at most 65534 with topology mesh"],
  [{ ...MESH, wireguardPort: 65534 }, "must be at most 65532 with topology mesh"],
  [{ ...MESH, mtu: 1200 }, "mtu must be at least 1280 with topology mesh"],
])("%j is refused", async (inputs, reason) => {
  const caller = { owner: owner("training"), dryRun: true, program: "main" };
  const { failures } = await networks.check(caller, undefined, netInputs(inputs));
  expect(failures.map((each) => each.reason)).toEqual([expect.stringContaining(reason)]);
});
