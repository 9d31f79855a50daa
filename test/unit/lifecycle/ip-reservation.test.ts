import { beforeEach, describe, expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { ownerOf, Stage } from "./stage";

let stage: Stage;
let r1: Values;
beforeEach(async () => {
  stage = await Stage.up();
  await stage.network();
  r1 = await stage.runner("r1", "192.0.2.11");
});

/** A reference to a runner, as the SDK passes it. */
const on = ({ networkName, runnerName, subnets, dockerNetwork }: Values, more: Values = {}): Values => ({
  runner: { networkName, runnerName, subnets, dockerNetwork },
  ...more,
});
const ips = () => stage.of("IPReservation");
const leasesOf = async (pool: string): Promise<string[]> =>
  (await stage.pool.ipam.leases(pool)).map(({ owner, state }) => `${owner.split("::").at(-1)} ${state}`).sort();

test("the first preview shows a runner and an address on it, and up gives the same", async () => {
  const fresh = await Stage.up();
  const network = await fresh.preview("OverlayNetwork", "n", { hubConnection: { host: "192.0.2.1" } });
  const runner = await fresh.preview("RunnerSubnet", "r", {
    network: { networkName: network.networkName, subnets: network.subnets },
    connection: { host: "192.0.2.11" },
    hubConnection: { host: "192.0.2.1" },
  });
  const { ip, ...shown } = await fresh.preview("IPReservation", "master", on(runner));
  expect(ip).toMatch(/^10\.128\.\d+\.\d+$/);
  expect(shown).toMatchObject({
    cidr: `${ip}/18`,
    gateway: "10.128.64.1",
    runnerName: "r",
    dockerRunArgs: `--network pulumi-overlay --ip ${ip}`,
  });
  expect(fresh.fleet.contacted).toEqual([]);
});

test("outputs: token, state, expiry; a VM has a MAC and a tap device that follow from the address", async () => {
  const held = await stage.make("IPReservation", "a", on(r1));
  expect(held).toMatchObject({ state: "reserved", expiresAt: undefined, drift: [] });
  const vm = await stage.make("IPReservation", "b", on(r1, { kind: "vm", ttl: true, ip: "10.128.64.77" }));
  expect(vm).toMatchObject({
    expiresAt: "2030-01-01T00:30:00.000Z",
    mac: "02:59:1a:a7:ca:db",
    tapDevice: "tap1e734a822f",
  });
  expect(vm.dockerRunArgs).toBeUndefined();
  const grant = await stage.pool.ipam.openToken(String(vm.token), { runner: "training/r1" });
  expect(grant).toMatchObject({ leaseId: vm.leaseId, pool: "runner/training/r1" });
  expect((await stage.make("IPReservation", "c", on(r1, { ttl: true }))).expiresAt).toBe("2030-01-01T00:05:00.000Z");
});

test.each([
  ["ACCESS_DENIED", "keeps the token of the state"],
  ["STORE_UNAVAILABLE", "fails"],
] as const)("a refresh whose new token is refused with %s %s", async (code, outcome) => {
  const props = await stage.make("IPReservation", "a", on(r1));
  stage.deps.token = () => Promise.reject(new OverlayError(code, "No.", "Stop."));
  const token = await ips()
    .read("id", props)
    .then(
      (read) => read.props.token,
      (error) => error.code,
    );
  expect(token).toBe(outcome === "fails" ? code : props.token);
});

test("a reservation can name its runner, as from another stack", async () => {
  const { ip } = await stage.make("IPReservation", "a", { runner: "training/r1" });
  expect(ip).toMatch(/^10\.128\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\./);
  expect(await stage.refusal("IPReservation", "b", { runner: "training/nosuch" })).toMatch(/^POOL_NOT_FOUND/);
});

describe("inputs that do not fit together", () => {
  test.each<[Values, RegExp]>([
    [{}, /^INPUT_INVALID: runner is missing: give runner, network, pool, or tenant with type/],
    [{ network: "training" }, /^INPUT_INVALID: network does not go with runner/],
    [{ ttl: 59 }, /^INPUT_INVALID: ttl/],
    [{ ttl: 86401 }, /^INPUT_INVALID: ttl/],
    [{ ttl: false }, /^INPUT_INVALID: ttl must be `true` or a whole number from 60 to 86400; it is false\.$/],
    [{ ttl: "300" }, /^INPUT_INVALID: ttl must be `true` or a whole number/],
    [{ usedBy: "two words" }, /^INPUT_INVALID: usedBy must be/],
    [{ ip: "10.128.64.300" }, /^INPUT_INVALID: ip must be an IP address/],
    [{ port: 80 }, /^INPUT_INVALID: port can be requested only in a nodePort pool/],
    [{ ip: "10.128.64.1" }, /^IP_OUTSIDE_POOL: Address 10\.128\.64\.1 /],
    [{ ip: "10.128.64.254" }, /^IP_OUTSIDE_POOL/],
  ])("%j is refused", async (news, reason) => {
    const given = Object.keys(news).length === 0 ? news : on(r1, news);
    expect(await stage.refusal("IPReservation", "a", given)).toMatch(reason);
  });
});

test("an unknown runner makes the values unknown and no offer; an unknown user does not", async () => {
  expect(await stage.preview("IPReservation", "a", { runner: UNKNOWN })).toMatchObject({
    ip: UNKNOWN,
    runner: UNKNOWN,
  });
  expect(await leasesOf("runner/training/r1")).toEqual([]);
  const late = await stage.preview("IPReservation", "a", on(r1, { usedBy: UNKNOWN }));
  expect(late.ip).toMatch(/^10\./);
});

test("an unknown ttl makes no address unknown", async () => {
  const made = await stage.make("IPReservation", "job", on(r1));
  expect(await stage.preview("IPReservation", "job", on(r1, { ttl: UNKNOWN }), made)).toMatchObject({ ip: made.ip });
});

test("a request for its own address, or for any, changes nothing; one for another address replaces, create first", async () => {
  const props = await stage.make("IPReservation", "a", on(r1));
  const pinned = await stage.preview("IPReservation", "a", on(r1, { ip: props.ip }), props);
  expect(await ips().diff(props, pinned)).toMatchObject({ changes: false });
  const free = await stage.preview("IPReservation", "a", on(r1), pinned);
  expect(await ips().diff(props, free)).toMatchObject({ changes: false });
  const other = await stage.preview("IPReservation", "a", on(r1, { ip: "10.128.64.9" }), props);
  expect(await ips().diff(props, other)).toMatchObject({ replaces: ["ip"], deleteBeforeReplace: false });
  const moved = (await ips().create(other)).props;
  expect(await leasesOf("runner/training/r1")).toEqual(["a reserved", "a reserved"]);
  await ips().delete(props);
  expect(await leasesOf("runner/training/r1")).toEqual(["a quarantined", "a reserved"]);
  expect(await ips().diff(moved, other)).toMatchObject({ changes: false });
});

test("two reservations swap their addresses in one up", async () => {
  const [a, b] = [
    await stage.make("IPReservation", "a", on(r1, { ip: "10.128.64.8" })),
    await stage.make("IPReservation", "b", on(r1, { ip: "10.128.64.9" })),
  ];
  stage.newRun();
  const wantA = await stage.preview("IPReservation", "a", on(r1, { ip: "10.128.64.9" }), a);
  const wantB = await stage.preview("IPReservation", "b", on(r1, { ip: "10.128.64.8" }), b);
  const [newA, newB] = await Promise.all([ips().create(wantA), ips().create(wantB)]);
  await ips().delete(a);
  await ips().delete(b);
  expect(await leasesOf("runner/training/r1")).toEqual(["a reserved", "b reserved"]);
  expect([newA.props.ip, newB.props.ip]).toEqual(["10.128.64.9", "10.128.64.8"]);
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test("two reservations request one address: preview refuses the one that is checked second, and names the other", async () => {
  const wish = on(r1, { ip: "10.128.64.8" });
  const a = await stage.make("IPReservation", "a", wish);
  stage.newRun();
  await stage.preview("IPReservation", "b", wish);
  expect(await stage.refusal("IPReservation", "a", wish, a)).toMatch(/^IP_IN_USE: Address 10\.128\.64\.8 .*::b\./);
  const other = await stage.make("IPReservation", "other", on(r1, { ip: "10.128.64.9" }));
  await stage.preview("IPReservation", "other", on(r1), other);
  expect(await stage.refusal("IPReservation", "b", on(r1, { ip: "10.128.64.9" }))).toMatch(/^IP_IN_USE: .*::other\./);
});

test("a replacement deletes the old reservation first if the quota has no room for both", async () => {
  const pool = await stage.make("IPPool", "few", { ranges: ["10.0.0.0/24"], quota: { maxReservations: 1 } });
  const { ranges, quota } = pool;
  const settings = { poolName: "few", addressSpace: "default", type: "container", ranges, quota };
  const a = await stage.make("IPReservation", "a", { pool: settings, ip: "10.0.0.1" });
  const next = await stage.preview("IPReservation", "a", { pool: settings, ip: "10.0.0.2" }, a);
  expect(await ips().diff(a, next)).toMatchObject({ replaces: ["ip"], deleteBeforeReplace: true });
  await ips().delete(a);
  expect((await ips().create(next)).props).toMatchObject({ ip: "10.0.0.2" });
  expect(await stage.refusal("IPReservation", "b", { pool: settings })).toMatch(/^POOL_QUOTA/);
});

describe("time", () => {
  test("an expired reservation is a replacement in a plain preview, with the same address while that is free", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { ttl: 60 }));
    const news = on(r1, { ttl: 60 });
    expect(await ips().diff(props, await stage.preview("IPReservation", "a", news, props))).toMatchObject({
      changes: false,
    });
    stage.pass(61);
    const next = await stage.preview("IPReservation", "a", news, props);
    expect(next.ip).toBe(props.ip);
    expect(await ips().diff(props, next)).toMatchObject({
      changes: true,
      replaces: ["leaseId"],
      deleteBeforeReplace: false,
    });
    const again = (await ips().create(next)).props;
    await ips().delete(props);
    expect(again).toMatchObject({ ip: props.ip, expiresAt: "2030-01-01T00:02:01.000Z" });
    expect(await leasesOf("runner/training/r1")).toEqual(["a reserved"]);
  });

  test("an expired reservation gets another address if another owner has its own by now", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { ttl: 60 }));
    stage.pass(61);
    await stage.make("IPReservation", "b", on(r1, { ip: props.ip }));
    const next = await stage.preview("IPReservation", "a", on(r1, { ttl: 60 }), props);
    expect(next.ip).not.toBe(props.ip);
    expect(await ips().diff(props, next)).toMatchObject({ replaces: ["ip", "leaseId"] });
  });

  test("another ttl is an update that counts from now; without a ttl it does not expire; other updates do not extend it", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { ttl: 60 }));
    stage.pass(30);
    const labelled = await stage.change("IPReservation", "a", props, on(r1, { ttl: 60, labels: { team: "ml" } }));
    expect(labelled.expiresAt).toBe(props.expiresAt);
    const longer = await stage.change("IPReservation", "a", labelled, on(r1, { ttl: 600, labels: { team: "ml" } }));
    expect(longer).toMatchObject({ expiresAt: "2030-01-01T00:10:30.000Z", leaseId: props.leaseId });
    expect(longer.token).not.toBe(props.token);
    const held = await stage.change("IPReservation", "a", longer, on(r1, { labels: { team: "ml" } }));
    expect(held.expiresAt).toBeUndefined();
  });
});

describe("use", () => {
  test("usedBy is an update; a used reservation does not expire, and is deleted only with force", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { ttl: 60 }));
    const used = await stage.change("IPReservation", "a", props, on(r1, { ttl: 60, usedBy: "job-7" }));
    expect(used).toMatchObject({ state: "used", expiresAt: undefined });
    stage.pass(3600);
    expect(await ips().diff(used, used)).toMatchObject({ changes: false });
    await expect(ips().delete(used)).rejects.toThrow(/^IP_IN_USE: 10\.128\.\d+\.\d+ is used by job-7\. /);
    await ips().delete({ ...used, force: true });
  });

  test("a user has one reservation on a network", async () => {
    await stage.runner("r2", "192.0.2.12");
    await stage.make("IPReservation", "a", on(r1, { usedBy: "job-7" }));
    expect(await stage.refusal("IPReservation", "b", { runner: "training/r2", usedBy: "job-7" })).toMatch(
      /^RESERVATION_EXISTS: The address for job-7 on network training belongs to .*::a /,
    );
  });

  test("a used reservation that moves keeps its user, and the old one is released at the end", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { usedBy: "job-7", ip: "10.128.64.8" }));
    const next = await stage.preview("IPReservation", "a", on(r1, { usedBy: "job-7", ip: "10.128.64.9" }), props);
    stage.pass(1);
    const moved = (await ips().create(next)).props;
    await ips().delete(props);
    expect(await stage.pool.ipam.find({ name: "user/training/job-7" })).toMatchObject({ leaseId: moved.leaseId });
    await stage.runner("r2", "192.0.2.12");
    const there = { runner: "training/r2", usedBy: "job-7" };
    await ips().create(await stage.preview("IPReservation", "a", there, moved));
    await ips().delete(moved);
  });

  test("a reservation that a container uses by its token is not released, also when it is replaced", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { ip: "10.128.64.8" }));
    const names = ["user/training/box"];
    await stage.pool.change("runner/training/r1", String(props.leaseId), { state: "used", usedBy: "box", names });
    stage.pass(1);
    await ips().create(await stage.preview("IPReservation", "a", on(r1, { ip: "10.128.64.9" }), props));
    await expect(ips().delete(props)).rejects.toThrow(/^IP_IN_USE: 10\.128\.64\.8 is used by box\./);
  });

  test("the use by a container with the token survives an update and a forced replacement", async () => {
    const props = await stage.make("IPReservation", "a", on(r1, { ttl: 60 }));
    const names = ["user/training/box"];
    await stage.pool.change("runner/training/r1", String(props.leaseId), { state: "used", usedBy: "box", names });
    const { props: read } = await ips().read("id", props);
    expect(read).toMatchObject({ state: "used", expiresAt: undefined, drift: [] });
    const updated = await stage.change("IPReservation", "a", read, on(r1, { ttl: 60, labels: { team: "ml" } }));
    expect(updated.state).toBe("used");
    const renewed = await stage.make("IPReservation", "a", on(r1, { ttl: 60, labels: { team: "ml" } }));
    await ips().delete(updated);
    expect(renewed).toMatchObject({ ip: props.ip, state: "used" });
    expect(await stage.pool.ipam.find({ name: "user/training/box" })).toMatchObject({
      usedBy: "box",
      leaseId: renewed.leaseId,
    });
  });
});

describe("any runner", () => {
  const any = (more: Values = {}): Values => ({ network: "training", ...more });
  const runnersOf = async (count: number, more: Values = {}): Promise<string[]> => {
    const names: string[] = [];
    for (let i = 0; i < count; i++)
      names.push(String((await stage.preview("IPReservation", `p${i}`, any(more))).runnerName));
    return names;
  };
  beforeEach(async () => {
    await stage.runner("r2", "192.0.2.12");
    await stage.runner("r3", "192.0.2.13");
  });

  test("placement of new reservations: the most free addresses, the fewest reservations, or all on one runner", async () => {
    expect((await runnersOf(6)).sort()).toEqual(["r1", "r1", "r2", "r2", "r3", "r3"]);
    const packed = await Stage.up();
    stage = packed;
    await packed.network();
    await packed.runner("r1", "192.0.2.11");
    await packed.runner("r2", "192.0.2.12");
    await packed.make("IPReservation", "first", { runner: "training/r2" });
    expect(await runnersOf(3, { placement: "packed" })).toEqual(["r2", "r2", "r2"]);
    expect(await runnersOf(3, { placement: "spread" })).toEqual(["r2", "r2", "r2"]); // they are placed already
  });

  test("none is placed on a runner that only a preview of another program has shown", async () => {
    for (const name of ["r1", "r2", "r3"]) await stage.make("IPReservation", name, { runner: `training/${name}` });
    const r4 = { network: "training", connection: { host: "192.0.2.14" }, hubConnection: { host: "192.0.2.1" } };
    await stage.preview("RunnerSubnet", "r4", r4);
    expect(await stage.preview("IPReservation", "a", any())).toMatchObject({ runnerName: "r4" }); // by the program that creates it
    stage.newRun();
    const shown = await stage.preview("IPReservation", "a", any());
    expect(shown.runnerName).not.toBe("r4");
    expect(await stage.refusal("IPReservation", "b", any({ ip: "10.129.0.9" }))).toMatch(/^IP_OUTSIDE_POOL/);
    stage.newRun();
    expect(await stage.make("IPReservation", "a", any())).toMatchObject({ ip: shown.ip, runnerName: shown.runnerName });
    expect((await stage.make("IPReservation", "c", any())).runnerName).not.toBe("r4");
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("an up leaves a runner that was shown to another program only, and stops if it was shown to this one", async () => {
    for (const name of ["r1", "r2", "r3"]) await stage.make("IPReservation", name, { runner: `training/${name}` });
    const r4 = { network: "training", connection: { host: "192.0.2.14" }, hubConnection: { host: "192.0.2.1" } };
    stage.program = "branch";
    await stage.preview("RunnerSubnet", "r4", r4);
    expect(await stage.preview("IPReservation", "a", any())).toMatchObject({ runnerName: "r4" });
    stage.newRun();
    await expect(stage.make("IPReservation", "a", any())).rejects.toThrow(/^POOL_NOT_FOUND: .*only in a preview/);
    stage.newRun();
    stage.program = "main";
    expect((await stage.make("IPReservation", "a", any())).runnerName).not.toBe("r4");
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a placed reservation keeps its runner: from preview to up, afterwards, and when renamed", async () => {
    const shown = await stage.preview("IPReservation", "a", any());
    for (let i = 0; i < 4; i++)
      await stage.make("IPReservation", `other${i}`, { runner: `training/${shown.runnerName}` });
    const made = await stage.make("IPReservation", "a", any());
    expect(made).toMatchObject({ ip: shown.ip, runnerName: shown.runnerName });
    expect(await ips().diff(made, await stage.preview("IPReservation", "a", any(), made))).toMatchObject({
      changes: false,
    });
    const renamed = await stage.preview("IPReservation", "b", any(), made);
    await ips().update("id", made, renamed);
    expect(await stage.make("IPReservation", "b", any())).toMatchObject({ ip: shown.ip, runnerName: shown.runnerName });
    expect(await stage.pool.ipam.find({ name: `placed/training/${ownerOf("IPReservation", "a")}` })).toBeUndefined();
  });

  test("the chosen runner can become an input, and be removed again; another network replaces", async () => {
    const made = await stage.make("IPReservation", "a", any());
    const placed = `placed/training/${ownerOf("IPReservation", "a")}`;
    const pinned = await stage.change("IPReservation", "a", made, { runner: `training/${made.runnerName}` });
    expect(pinned).toMatchObject({ ip: made.ip, leaseId: made.leaseId });
    expect(await stage.pool.ipam.find({ name: placed })).toBeUndefined();
    const open = await stage.change("IPReservation", "a", pinned, any());
    expect(open).toMatchObject({ ip: made.ip, leaseId: made.leaseId });
    expect(await stage.pool.ipam.find({ name: placed })).toMatchObject({ leaseId: made.leaseId });
    await stage.network("other", {
      subnets: "10.160.0.0/12/6/14",
      vniBase: 500,
      devicePrefix: "o",
      hubInterface: "o",
      bridgeName: "ob",
    });
    await stage.runner("x1", "192.0.2.14", { network: "other" });
    const moved = await stage.preview("IPReservation", "a", { network: "other" }, open);
    expect((await ips().diff(open, moved)).replaces).toContain("runner.networkName");
  });

  test("a requested address decides the runner", async () => {
    expect(await stage.preview("IPReservation", "a", any({ ip: "10.128.128.9" }))).toMatchObject({ runnerName: "r2" });
    expect(await stage.refusal("IPReservation", "b", any({ ip: "10.129.0.9" }))).toMatch(
      /^IP_OUTSIDE_POOL: .*no runner/,
    );
  });

  test("a network without runners: the address is unknown in preview, and up fails with a fix", async () => {
    const empty = await Stage.up();
    await empty.network();
    expect(await empty.preview("IPReservation", "a", any())).toMatchObject({ ip: UNKNOWN });
    expect(empty.warnings[0]).toMatch(/^POOL_NOT_FOUND: Network training has no runner yet.*dependsOn/);
    const { failures } = await empty.check("IPReservation", "a", any());
    expect(failures[0]?.reason).toMatch(/^POOL_NOT_FOUND: Network training has no runner yet/);
  });
});

describe("a runner that is to go", () => {
  const any = { network: "training" };
  const hosts: Record<string, string> = { r1: "192.0.2.11", r2: "192.0.2.12" };
  const cordon = (name: string, olds: Values) =>
    stage.change("RunnerSubnet", name, olds, {
      ...{ network: "training", connection: { host: hosts[name] }, hubConnection: { host: "192.0.2.1" } },
      cordon: true,
    });

  test("is not chosen once it is cordoned: its reservations stay, and leave it when they are replaced", async () => {
    const held = await stage.make("IPReservation", "a", any);
    const r2 = await stage.runner("r2", hosts.r2!);
    stage.fleet.takeWrites();
    await cordon("r1", r1);
    expect(stage.fleet.takeWrites()).toEqual([]);
    stage.newRun();
    for (const name of ["b", "c"])
      expect(await stage.preview("IPReservation", name, any)).toMatchObject({ runnerName: "r2" });
    expect(await stage.preview("IPReservation", "a", any, held)).toMatchObject({ ip: held.ip, runnerName: "r1" });
    expect(await stage.preview("IPReservation", "d", on(r1))).toMatchObject({ runnerName: "r1" });
    const moved = await stage.make("IPReservation", "a", any); // Pulumi replaces it: without its state
    expect(moved).toMatchObject({ runnerName: "r2" });
    await ips().delete(held);
    expect(await stage.preview("IPReservation", "a", any, moved)).toMatchObject({ ip: moved.ip });
    await cordon("r2", r2);
    stage.newRun();
    expect((await stage.check("IPReservation", "e", any)).failures[0]?.reason).toMatch(
      /^POOL_NOT_FOUND: Network training has no runner yet that takes new reservations\. .*cordoned/,
    );
  });

  test("is left for the runner that preview has shown: its offer does not lead to another one", async () => {
    const held = await stage.make("IPReservation", "a", any);
    for (const [i, name] of ["r2", "r3"].entries()) await stage.runner(name, `192.0.2.${12 + i}`);
    await stage.pool.claim({ pool: "runner/training/r2", owner: "docker/training/r2/web", type: "IPReservation" });
    await cordon("r1", r1);
    for (const _ of [1, 2]) {
      stage.newRun();
      expect(await stage.preview("IPReservation", "a", any)).toMatchObject({ runnerName: "r3" }); // Pulumi replaces it
    }
    stage.newRun();
    expect(await stage.make("IPReservation", "a", any)).toMatchObject({ runnerName: "r3" });
    await ips().delete(held);
  });

  test("is named in preview, if the program no longer declares it and one of its reservations stays", async () => {
    const held = await stage.make("IPReservation", "a", any);
    await stage.runner("r2", hosts.r2!);
    stage.newRun();
    stage.declares = (owner) => !owner.endsWith("::r1");
    const lifecycle = ips();
    const caller = { owner: ownerOf("IPReservation", "a"), dryRun: true, program: "main", declares: stage.declares };
    const { inputs } = await lifecycle.check(caller, held, any);
    await expect(lifecycle.diff(held, inputs)).rejects.toThrow(
      /^POOL_IN_USE: IPReservation a is in runner r1 of network training, but the program no longer declares RunnerSubnet r1, whose delete would fail\. .*--replace.*--skip-preview/,
    );
    // An up that does not delete the runner (`retainOnDelete`, `--target`) has a way.
    const up = ips();
    const checked = await up.check({ ...caller, dryRun: false }, held, any);
    expect(await up.diff(held, checked.inputs)).toMatchObject({ changes: false });
    expect(await stage.preview("IPReservation", "a", any)).toMatchObject({ runnerName: "r2" });
  });

  test("is named with the addresses that were reserved at run time, before it is deleted or replaced", async () => {
    const claim = (owner: string, usedBy: object = {}) =>
      stage.pool.claim({ pool: "runner/training/r1", owner, type: "IPReservation", ...usedBy });
    const inputs = (name: string) => ({
      ...{ network: "training", connection: { host: hosts[name] }, hubConnection: { host: "192.0.2.1" } },
    });
    const r2 = await stage.runner("r2", hosts.r2!);
    await claim("docker/training/r1/web", { usedBy: "web" });
    const declares = (owner: string) => !owner.endsWith("::r1");
    const checkAndDiff = async () => {
      stage.newRun();
      const lifecycle = stage.of("RunnerSubnet");
      const caller = { owner: ownerOf("RunnerSubnet", "r2"), dryRun: true, program: "main", declares };
      return lifecycle.diff(r2, (await lifecycle.check(caller, r2, inputs("r2"))).inputs);
    };
    expect(await checkAndDiff()).toMatchObject({ changes: false });
    await claim("job-7");
    stage.warnings.length = 0;
    expect(await checkAndDiff()).toMatchObject({ changes: false });
    expect(stage.warnings.join()).toMatch(
      /^the program has not declared RunnerSubnet r1\. If it is to be deleted, that will fail with POOL_IN_USE: runner r1 of network training has leases that would stay: 10\.128\.\S+ job-7 \(last seen \S+\)\. Drain the runner first: .*`overlayctl ip release`.*docs\/draining\.md/,
    );
    expect(await stage.refusal("RunnerSubnet", "r1", { ...inputs("r1"), runnerId: 9 }, r1)).toMatch(
      /^POOL_IN_USE: Runner r1 of network training cannot be replaced \(change of runnerId\): .* job-7 .*Drain the runner first/,
    );
  });
});

test("dual stack: one address of each family; if one is requested, the other has the same offset or stays", async () => {
  const dual = await Stage.up();
  await dual.network("training", { subnets: ["10.128.0.0/12/6/14", "fd00:128::/58/6/64"] });
  const runner = await dual.runner("r1", "192.0.2.11");
  const props = await dual.make("IPReservation", "a", on(runner));
  expect(props).toMatchObject({
    ip6: expect.stringMatching(/^fd00:128:/),
    cidr6: `${props.ip6}/64`,
    gateway6: expect.any(String),
  });
  expect(props.dockerRunArgs).toBe(`--network pulumi-overlay --ip ${props.ip} --ip6 ${props.ip6}`);
  const pinned = await dual.preview("IPReservation", "a", on(runner, { ip: props.ip }), props);
  expect(await dual.of("IPReservation").diff(props, pinned)).toMatchObject({ changes: false });
  const wished = await dual.preview("IPReservation", "b", on(runner, { ip: "10.128.64.77" }));
  expect(wished.ip6).toMatch(/^fd00:128:0:1::4d$/);
  for (const where of [on(runner), { network: "training" }])
    expect(await dual.refusal("IPReservation", "c", { ...where, ip: "fd00:128:0:1::9" })).toBe(
      "INPUT_INVALID: ip is fd00:128:0:1::9, which is in fd00:128:0:1::/64, the second range of its runner. Request an address of 10.128.64.0/18 as ip, and this one as ip6.",
    );
  expect(await dual.refusal("IPReservation", "c", on(runner, { ip: "fd00:129::9" }))).toMatch(/^IP_OUTSIDE_POOL: /);
});

test("a replaced runner: its reservations are replaced, too, and their addresses are unknown in this preview", async () => {
  const props = await stage.make("IPReservation", "a", on(r1));
  const hubConnection = { host: "192.0.2.1" };
  const news = { network: "training", connection: { host: "192.0.2.11" }, hubConnection, runnerId: 7 };
  const moved = await stage.preview("RunnerSubnet", "r1", news, r1);
  const next = await stage.preview("IPReservation", "a", on(moved), props);
  expect(next.ip).toBe(UNKNOWN);
  expect(await ips().diff(props, next)).toMatchObject({ replaces: expect.arrayContaining(["runner.subnets"]) });
  expect(await ips().diff(props, { ...props, runner: UNKNOWN })).toMatchObject({ replaces: ["runner"] });
});

test("a lost store is not treated as an empty one", async () => {
  const props = await stage.make("IPReservation", "a", on(r1));
  const lost = await Stage.up();
  await expect(lost.of("IPReservation").diff(props, props)).rejects.toThrow(/^STORE_LOST/);
  await expect(lost.of("IPReservation").delete(props)).rejects.toThrow(/^STORE_LOST/);
});

test("equal names under two components are two owners", async () => {
  const make = async (parent: string) => {
    const owner = `org/urn:pulumi:dev::p::team:index:${parent}$overlay:index:IPReservation::node`;
    const { inputs } = await ips().check({ owner, dryRun: false, program: "main" }, undefined, on(r1));
    return (await ips().create(inputs)).props.ip;
  };
  expect(await make("a")).not.toBe(await make("b"));
});
