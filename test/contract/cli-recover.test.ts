import { copyFileSync, existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeEach, describe, expect, test } from "vitest";
import { claimOne, findSpec, listSpecs } from "../../provider/ipam/interface";
import { RunPlan } from "../../provider/ipam/run-plan";
import type { Ipam, Lease } from "../../provider/ipam/types";
import { Lifecycle } from "../../provider/lifecycle/lifecycle";
import type { Values } from "../../provider/lifecycle/values";
import { parseSettings } from "../../provider/resource";
import { resourceOf } from "../../provider/resources";
import { storedNetwork } from "../../provider/resources/network-settings";
import { Ctl, type Deployed, deploy, lifecyclesOn, make } from "../unit/cli/ctl";
import { FakeFleet, fakeDependencies } from "../unit/lifecycle/fake-fleet";

/** A store that was lost, and a store with leases that no stack has. */
const ctl = new Ctl();
let deployed: Deployed;

beforeEach(async () => {
  lose();
  deployed = await ctl.withPool((pool) => deploy(pool, ["node1", "node2", "node3"], { labels: { team: "ml" } }));
});
afterAll(() => ctl.remove());

function lose(): void {
  for (const end of ["", "-wal", "-shm", "-journal"]) rmSync(join(ctl.folder, `pool.db${end}`), { force: true });
}

const SECRETS = ["connection", "hubConnection"];
const hidden = (secret: object) => ({
  "4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270",
  ...secret,
});

/** A resource in the form of `pulumi stack export`; `shown`: as with `--show-secrets`. */
function resource(type: string, props: Values, { shown = false, ...more }: Values = {}): object {
  const name = String(props.owner).split("::").at(-1);
  const outputs = Object.entries(props).map(([key, value]) => {
    if (!SECRETS.includes(key)) return [key, value];
    return [key, hidden(shown ? { plaintext: JSON.stringify(value) } : { ciphertext: "v1:abc:def" })];
  });
  return {
    urn: `urn:pulumi:dev::shop::pulumi-nodejs:dynamic/overlay:${type}::${name}`,
    type: `pulumi-nodejs:dynamic/overlay:${type}`,
    custom: true,
    outputs: Object.fromEntries(outputs),
    ...more,
  };
}

const stackItself = { urn: "urn:pulumi:dev::shop::pulumi:pulumi:Stack::shop-dev", type: "pulumi:pulumi:Stack" };

function exportTo(name: string, resources: object[]): string {
  const document = { version: 3, deployment: { manifest: {}, resources: [stackItself, ...resources] } };
  writeFileSync(join(ctl.folder, name), JSON.stringify(document));
  return name;
}

/** Runners first: exports of several stacks come in any order. */
const everything = (more: Values = {}): object[] => [
  ...Object.values(deployed.runners).map((props) => resource("RunnerSubnet", props, more)),
  resource("OverlayNetwork", deployed.network, more),
];

const leases = (pools = ["space/default", "network/training"]): Promise<Lease[]> =>
  ctl.withPool(async (pool) => (await Promise.all(pools.map((name) => pool.leases(name)))).flat());
/** Without times, and without the run that last took the lease over. */
const timeless = (all: Lease[]) =>
  all.map(({ createdAt, updatedAt, lastSeen, data, ...lease }) => ({ ...lease, name: (data as Values).name }));
const withoutHosts = (all: Partial<Lease>[]) =>
  all.map((lease) => ({ ...lease, names: lease.names?.filter((name) => !name.startsWith("host/")) }));

const differences = (pool: Ipam) => {
  const { networks, runners } = lifecyclesOn(pool);
  return Promise.all([
    networks.diff(deployed.network, deployed.network),
    ...Object.values(deployed.runners).map((props) => runners.diff(props, props)),
  ]);
};

describe.sequential("overlayctl recover", { timeout: 60_000 }, () => {
  test("a lost store allocates nothing; the plan writes nothing; recovered, it is as before and no resource differs", async () => {
    const before = await leases();
    const file = exportTo("dev.json", everything());
    lose();
    await expect(ctl.withPool(differences)).rejects.toThrow(/^STORE_LOST: .*`overlayctl recover`/);

    const plan = await ctl.must("recover", "--stack-export", file);
    expect(plan.map(({ action, value, pool }) => `${action} ${value} in ${pool}`)).toEqual([
      "add 10.128.0.0/12 in space/default",
      "add 1 in network/training",
      "add 2 in network/training",
      "add 3 in network/training",
    ]);
    await expect(ctl.withPool(differences)).rejects.toThrow(/^STORE_LOST/);

    await ctl.must("recover", "--stack-export", file, "--yes");
    expect(withoutHosts(timeless(await leases()))).toEqual(withoutHosts(timeless(before)));
    for (const { changes } of await ctl.withPool(differences)) expect(changes).toBe(false);
    expect((await ctl.run("store", "check")).code).toBe(0);
    const next = await ctl.withPool((pool) =>
      claimOne(pool, { pool: "network/training", owner: "new", type: "RunnerSubnet" }),
    );
    expect(next.ranges).toEqual([{ first: 4n, last: 4n }]);
  });

  test("an older backup is refused by a stack that has seen a newer version, and accepted after the recovery", async () => {
    const copy = (from: string, to: string) => {
      for (const end of ["", "-wal"].filter((end) => existsSync(join(ctl.folder, `${from}${end}`))))
        copyFileSync(join(ctl.folder, `${from}${end}`), join(ctl.folder, `${to}${end}`));
    };
    const claim = (owner: string) =>
      ctl.withPool((pool) => claimOne(pool, { pool: "network/training", owner, type: "RunnerSubnet" }));
    copy("pool.db", "backup.db");
    const settings = await ctl.withPool((pool) => findSpec(pool, "network/training"));
    const late = await ctl.withPool((pool) =>
      make(lifecyclesOn(pool).runners, "late", {
        network: parseSettings(storedNetwork, settings!),
        connection: { host: "192.0.2.99" },
        hubConnection: { host: "192.0.2.1" },
      }),
    );
    const everyDiff = () =>
      ctl.withPool((pool) => Promise.all([differences(pool), lifecyclesOn(pool).runners.diff(late, late)]));
    await everyDiff();
    lose();
    copy("backup.db", "pool.db");
    await expect(everyDiff()).rejects.toThrow(/^STORE_LOST: The store at sqlite:.* but version \d+ of it was seen/);
    await sleep(1000);
    // A stack that has not seen a newer version cannot detect it, and gets the same value; the first one still stops.
    for (const owner of ["second", "third", "fourth", "fifth"]) await claim(owner);
    await expect(everyDiff()).rejects.toThrow(/^STORE_LOST: .* others have written to it since/);
    await ctl.withPool(async (pool) => {
      const { runners } = lifecyclesOn(pool);
      const calls = [() => runners.read("x", late), () => runners.update("x", late, late), () => runners.delete(late)];
      for (const call of calls) await expect(call()).rejects.toThrow(/^STORE_LOST/);
    });
    lose();
    copy("backup.db", "pool.db");
    const exported = exportTo("dev.json", [...everything(), resource("RunnerSubnet", late)]);
    await ctl.must("recover", "--stack-export", exported, "--yes");
    for (const { changes } of (await everyDiff()).flat()) expect(changes).toBe(false);
    expect((await claim("sixth")).ranges).toEqual([{ first: 5n, last: 5n }]);
  });

  test("a stack without an export is accepted with the version that it names", async () => {
    const file = exportTo("dev.json", [resource("OverlayNetwork", deployed.network)]);
    lose();
    await ctl.must("recover", "--stack-export", file, "--yes");
    const { node3 } = deployed.runners as Record<string, Values>;
    const difference = () => ctl.withPool((pool) => lifecyclesOn(pool).runners.diff(node3!, node3!));
    await expect(difference()).rejects.toThrow(/^STORE_LOST/);
    const [, version] = /^(\d+)-/.exec(String(node3!.storeVersion))!;
    await ctl.must("recover", "--seen-version", version!, "--yes");
    expect(await difference()).toMatchObject({ replaces: ["leaseId"] });
  });

  test("resources of a release without store versions are not refused, and do not differ", async () => {
    const { storeId, storeVersion, ...node1 } = deployed.runners.node1!;
    expect([storeId, storeVersion]).toEqual([expect.any(String), expect.stringMatching(/^\d+-[0-9a-f]{8}$/)]);
    expect(await ctl.withPool((pool) => lifecyclesOn(pool).runners.diff(node1, node1))).toMatchObject({
      changes: false,
      replaces: [],
    });
  });

  test("with secrets shown, the names of hosts and the network's hub are recovered too", async () => {
    const before = await leases();
    const hub = await ctl.withPool((pool) => findSpec(pool, "network/training"));
    const file = exportTo("dev.json", everything({ shown: true }));
    lose();
    await ctl.must("recover", "--stack-export", file, "--yes");
    expect(timeless(await leases())).toEqual(timeless(before));
    expect(await ctl.withPool((pool) => findSpec(pool, "network/training"))).toEqual(hub);
  });

  test("a second run, and a run on a sound store, find all leases present", async () => {
    const file = exportTo("dev.json", everything());
    const before = await leases();
    const known = await ctl.must("recover", "--stack-export", file, "--yes");
    expect(known.map(({ action }) => action)).toEqual(["known", "known", "known", "known"]);
    expect(await leases()).toEqual(before);
  });

  test("two resources with one value, or one name, are refused with both sides named, and nothing is written", async () => {
    const { node1, node2 } = deployed.runners as Record<string, Values>;
    const second = {
      ...node1,
      owner: String(node1!.owner).replace("node1", "second"),
      runnerName: "second",
      uid: "u1",
      leaseId: "u1.1",
    };
    const double = {
      ...node2,
      owner: String(node2!.owner).replace("node2", "double"),
      runnerId: 9,
      uid: "u2",
      leaseId: "u2.1",
    };
    const files = [
      exportTo("dev.json", everything()),
      exportTo("other.json", [resource("RunnerSubnet", second), resource("RunnerSubnet", double)]),
    ];
    lose();
    const { code, json, stderr } = await ctl.run("recover", "--stack-export", ...files, "--yes", "--json");
    expect([code, json.at(-1)!.error]).toEqual([1, "STORE_CONFLICT"]);
    expect(stderr).toContain(
      "::second (other.json): Runner id 1 of network training is reserved by organization/urn:pulumi:dev::shop::overlay:index:RunnerSubnet::node1.",
    );
    expect(stderr).toContain(
      "::double (other.json): Runner name node2 of network training belongs to organization/urn:pulumi:dev::shop::overlay:index:RunnerSubnet::node2",
    );
    expect(await leases()).toEqual([]);
  });

  test("an export that contradicts the store is refused: another holder, or a lease that is newer than the export", async () => {
    const file = exportTo("dev.json", everything());
    const { node1 } = deployed.runners as Record<string, Values>;
    await ctl.withPool((pool) =>
      claimOne(pool, { pool: "network/training", owner: String(node1!.owner), type: "RunnerSubnet" }),
    );
    expect(await ctl.refusal("recover", "--stack-export", file)).toBe("1 STORE_CONFLICT");
    lose();
    await ctl.withPool((pool) => deploy(pool, ["other"]));
    const { stderr } = await ctl.run("recover", "--stack-export", file);
    expect(stderr).toContain("10.128.0.0/12 overlaps 10.128.0.0/12, which is held by");
  });

  test("offers that were made meanwhile are ended by recovered leases", async () => {
    const file = exportTo("dev.json", everything());
    lose();
    await ctl.withPool(async (pool) => {
      const { networks } = lifecyclesOn(pool);
      const news = { hubConnection: { host: "192.0.2.9" }, networkName: "training" };
      await networks.check(
        { owner: "organization/urn:pulumi:pr::shop::overlay:index:OverlayNetwork::x", dryRun: true },
        undefined,
        news,
      );
    });
    expect(await ctl.must("recover", "--stack-export", file, "--yes")).toHaveLength(4);
    expect((await ctl.run("store", "check")).code).toBe(0);
  });

  test("a resource that is pending deletion after a forced replacement is not a second holder", async () => {
    const { node1 } = deployed.runners as Record<string, Values>;
    const earlier = { ...node1, leaseId: `${node1!.uid}.earlier` };
    const file = exportTo("dev.json", [...everything(), resource("RunnerSubnet", earlier, { delete: true })]);
    lose();
    expect(await ctl.must("recover", "--stack-export", file)).toHaveLength(4);
  });

  test.each([
    ["no file", "missing.json", undefined],
    ["no JSON", "bad.json", "hello"],
    ["another JSON", "other.json", '{"a": 1}'],
  ])("%s is refused", async (_, name, text) => {
    if (text) writeFileSync(join(ctl.folder, name), text);
    else rmSync(join(ctl.folder, name), { force: true });
    expect(await ctl.refusal("recover", "--stack-export", name)).toBe("1 INPUT_INVALID");
  });
});

describe.sequential("overlayctl gc", { timeout: 60_000 }, () => {
  const gc = ["gc", "--older-than", "0"];
  const values = (rows: Values[]) => rows.map(({ value, pool }) => `${value} in ${pool}`);

  test("leases that the stack no longer has are shown, and released only with --yes", async () => {
    const { node2: _, ...kept } = deployed.runners;
    const resources = [
      resource("OverlayNetwork", deployed.network),
      ...Object.values(kept).map((props) => resource("RunnerSubnet", props)),
    ];
    const file = exportTo("dev.json", resources);
    expect(values(await ctl.must(...gc, "--stack-export", file))).toEqual(["2 in network/training"]);
    expect(await leases()).toHaveLength(4);
    await ctl.must(...gc, "--stack-export", file, "--yes");
    expect((await leases()).filter(({ state }) => state === "reserved")).toHaveLength(3);
    expect(await ctl.must(...gc, "--stack-export", file)).toEqual([]);
  });

  test("a stack without our resources loses all its leases; leases in child pools are released first", async () => {
    const file = exportTo("dev.json", []);
    expect(await ctl.must("gc", "--stack-export", file)).toEqual([]); // an up may be under way
    expect(values(await ctl.must(...gc, "--stack-export", file, "--yes"))).toEqual([
      "3 in network/training",
      "2 in network/training",
      "1 in network/training",
      "10.128.0.0/12 in space/default",
    ]);
    expect(await ctl.withPool((pool) => listSpecs(pool, { prefix: "network/" }))).toEqual([]);
  });

  test("leases of stacks without an export are kept, unless --gone names the stack", async () => {
    await ctl.withPool((pool) =>
      claimOne(pool, {
        pool: "network/training",
        owner: "acme/urn:pulumi:dev::shop::overlay:index:RunnerSubnet::a",
        type: "RunnerSubnet",
      }),
    );
    const { code, stdout, stderr } = await ctl.run(...gc, "--stack-export", exportTo("dev.json", everything()));
    expect([code, stdout]).toEqual([0, ""]);
    expect(stderr).toContain("Skipped, because there is no export: acme/shop/dev.");
    expect(await ctl.refusal(...gc, "--stack-export", exportTo("empty.json", []))).toBe("1 INPUT_INVALID");
    expect(values(await ctl.must(...gc, "--gone", "acme/shop/dev"))).toEqual(["4 in network/training"]);
    expect(await ctl.refusal(...gc, "--gone", "acme/shop/prod")).toBe("1 INPUT_INVALID");
  });

  test("addresses of forgotten hosts are listed by host, and released only with --yes, when no other such host may use them", async () => {
    await ctl.withPool(async (pool) => {
      const fleet = new FakeFleet();
      const deps = { ...fakeDependencies(fleet, new RunPlan(pool)), unreachableOnDelete: "forget" as const };
      const { node1, node2, node3 } = deployed.runners as Record<string, Values>;
      for (const host of ["192.0.2.10", "192.0.2.11"]) fleet.down.add(host);
      const runners = new Lifecycle(resourceOf("RunnerSubnet"), deps);
      for (const props of [node1!, node2!, node3!]) await runners.delete(props);
      await new Lifecycle(resourceOf("OverlayNetwork"), deps).delete(deployed.network);
    });
    const shown = (rows: Values[]) => rows.map(({ value, hosts }) => `${value} ${hosts}`);
    const network = "10.128.0.0/12 192.0.2.11,192.0.2.10";
    expect(shown(await ctl.must("gc", "--forgotten"))).toEqual(["2 192.0.2.11", "1 192.0.2.10", network]);
    expect((await ctl.run(...gc, "--stack-export", exportTo("dev.json", []))).stdout).toBe(""); // no longer of the stack
    expect(await ctl.refusal("gc", "--forgotten", "192.0.2.12")).toBe("1 INPUT_INVALID");
    expect(await ctl.refusal("gc", "--forgotten", "--containers", "training")).toBe("2 INPUT_INVALID");

    const one = await ctl.run("gc", "--forgotten", "192.0.2.10", "--yes");
    expect(one.stderr).toBe("Skipped, because other forgotten hosts may use them, too: 1.\nReleased: 1 of 1.\n");
    expect(shown(await ctl.must("gc", "--forgotten", "192.0.2.11", "--yes"))).toEqual([
      "2 192.0.2.11",
      "10.128.0.0/12 192.0.2.11",
    ]);
    expect(await ctl.withPool((pool) => listSpecs(pool, { prefix: "network/" }))).toEqual([]);
    expect(await ctl.must("gc", "--forgotten")).toEqual([]);
  });

  test("a runner whose addresses are in use is not released", async () => {
    await ctl.must("ip", "reserve", "--network", "training", "--runner", "node1");
    const { code, stderr } = await ctl.run(...gc, "--stack-export", exportTo("dev.json", []), "--yes");
    expect(code).toBe(1);
    expect(stderr).toContain("POOL_IN_USE: Runner node1 of network training still has leases");
    expect(stderr).toContain("Released: 2 of 4.");
  });
});
