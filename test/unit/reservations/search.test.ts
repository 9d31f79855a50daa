import { beforeEach, describe, expect, test } from "vitest";
import { openSession } from "../../../provider/access/tenant-ipam";
import { parseIp } from "../../../provider/addressing/ip";
import { RunPlan } from "../../../provider/ipam/run-plan";
import {
  type Context,
  findLeasePage,
  findLeases,
  free,
  historyOfAddress,
  historyOfPool,
  importAddresses,
  ipOf,
  poolUsages,
  release,
  reserve,
  reserveMany,
  searchInput,
  showAddress,
  showPool,
  useAddress,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { TestService } from "../service/service";
import { codeOf, messageOf } from "./answers";

/** Pages, runners by their name alone, and what a tenant sees. */
let stage: Stage;
let context: Context;
beforeEach(async () => {
  stage = await Stage.up();
  context = { pool: stage.pool.ipam };
  await stage.network("training", { subnets: "10.10.0.0/16/8/8" });
  await stage.network("serving", { subnets: "10.20.0.0/16/8/8", hubConnection: { host: "192.0.2.2" } });
  for (const [name, network, host] of RUNNERS)
    await stage.make("RunnerSubnet", name, {
      network,
      connection: { host },
      hubConnection: { host: network === "training" ? "192.0.2.1" : "192.0.2.2" },
    });
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], allocation: "lowest" });
});

const RUNNERS = [
  ["node1", "training", "192.0.2.11"],
  ["node2", "training", "192.0.2.12"],
  ["node2", "serving", "192.0.3.12"],
] as const;

const value = (text: string) => [{ first: parseIp(text), last: parseIp(text) }];

describe("pages", () => {
  const expected = [
    "pool/web/192.168.7.1",
    "pool/web/192.168.7.1",
    "pool/web/192.168.7.4",
    "runner/training/node1/10.10.1.7",
    "runner/training/node1/10.10.1.9",
    "runner/training/node2/10.10.2.3",
  ];
  beforeEach(async () => {
    for (const text of new Set(expected)) {
      const at = text.lastIndexOf("/");
      const [pool, values] = [text.slice(0, at), value(text.slice(at + 1))];
      const owners = text === expected[0] ? ["x", "y"] : ["x"];
      for (const owner of owners)
        await stage.pool.ipam.claim([
          {
            pool,
            owner: `${owner} ${text}`,
            type: "StaticIP",
            values,
            ...(owners.length > 1 && { sharingKey: "k" }),
            labels: { n: String(expected.indexOf(text) % 2) },
          },
        ]);
    }
  });

  test.each([1, 2, 3, 4, 100])("of %d: all leases, each once, and those that share a value together", async (limit) => {
    const found: string[] = [];
    const sizes: number[] = [];
    let after: string | undefined;
    do {
      const page = await findLeasePage(context, searchInput.parse({ limit, after }));
      found.push(...page.leases.map((lease) => `${lease.pool}/${ipOf(lease)}`));
      sizes.push(page.leases.length);
      after = page.next;
    } while (after !== undefined && sizes.length < 10);
    expect(found).toEqual(expected);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(Math.max(limit, 2));
  });

  test("a filter is applied before the limit", async () => {
    const page = await findLeasePage(context, searchInput.parse({ limit: 2, labels: ["n=1"] }));
    expect(page.leases.map(ipOf)).toEqual(["10.10.1.7", "10.10.2.3"]);
    expect(page.next).toBeUndefined();
    const first = await findLeasePage(context, searchInput.parse({ limit: 1, labels: ["n=1"] }));
    expect(first.next).toBe("runner/training/node1/10.10.1.7");
  });

  test("a page begins after a lease that was released meanwhile", async () => {
    await free(context, { ip: parseIp("10.10.1.7") });
    const rest = await findLeases(context, searchInput.parse({ after: "runner/training/node1/10.10.1.7" }));
    expect(rest.map(ipOf)).toEqual(["10.10.1.9", "10.10.2.3"]);
  });

  test.each(["", "web", "pool/web/", "pool/web/x"])("%j is no cursor", (after) => {
    expect(searchInput.safeParse({ after }).success).toBe(false);
  });
});

describe("a page for which nothing matches", () => {
  const LEASES = 6000;
  beforeEach(async () => {
    await stage.make("IPPool", "large", { ranges: ["172.20.0.0/19"], allocation: "lowest" });
    const request = (i: number) => ({
      ...{ pool: "pool/large", owner: `o${i}`, type: "IPReservation" },
      ...(i === LEASES - 1 && { labels: { job: "last" } }),
    });
    await context.pool.claim(Array.from({ length: LEASES }, (_, i) => request(i)));
  });

  test("reads a bounded number of rows, and its cursor goes on to the next match", async () => {
    let rows = 0;
    const pool = stage.pool.ipam.session({ rowsRead: (read: number) => (rows += read) });
    const search = { labels: ["job=last"], limit: 10 };
    const page = await findLeasePage({ pool }, search);
    expect(page).toMatchObject({ leases: [], next: expect.stringMatching(/^pool\/large\//) });
    expect(rows).toBeGreaterThan(5000);
    expect(rows).toBeLessThan(6000);
    const second = await findLeasePage({ pool }, { ...search, after: searchInput.parse({ after: page.next }).after });
    expect([second.leases.length, second.next]).toEqual([1, undefined]);
    expect(await findLeases({ pool }, { labels: ["job=last"] })).toHaveLength(1);
  });

  test("counts as many requests of its access token", async () => {
    const limited = await TestService.on(stage.pool.ipam, { limits: { rateLimit: 100 } });
    const token = await limited.token("reader", ["read"]);
    const search = () => limited.outcome("GET /api/overlay/ip/reservations?label=job%3Dnone", token);
    expect([await search(), await search()]).toEqual(["200", "429 RATE_LIMITED"]);
    await limited.close();
  });
});

describe("a runner by its name", () => {
  test.each([
    [{ runner: "node1" }, "runner/training/node1"],
    [{ runner: "serving/node2" }, "runner/serving/node2"],
    [{ runner: "training/node2", network: "training" }, "runner/training/node2"],
    [{ runner: "node2", network: "serving" }, "runner/serving/node2"],
  ])("%j is %s", async (where, pool) => {
    expect((await reserve(context, where)).lease.pool).toBe(pool);
  });

  test.each([
    [
      { runner: "node2" },
      "INPUT_INVALID: Networks serving and training each have a runner 'node2'. Give the network, too, or write serving/node2.",
    ],
    [
      { runner: "node9" },
      "POOL_NOT_FOUND: No network has a runner 'node9'; there are networks serving, training. Check the name and the store.",
    ],
    [
      { runner: "training/node2", network: "serving" },
      "INPUT_INVALID: Runner training/node2 is not in network serving. Give the network once, or the same twice.",
    ],
    [
      { network: "training" },
      "INPUT_INVALID: The network alone names no pool. Give a runner, with its network where several have one of that name, or a pool.",
    ],
  ])("%j is refused", async (where, message) => {
    expect(await messageOf(reserve(context, where))).toBe(message);
  });

  test("that another tenant has, too, is the caller's own, or without a tenant that of all tenants", async () => {
    const tenant = { org: "acme", project: "shop" };
    const own = {
      ...context,
      pool: openSession(stage.pool.ipam, { name: "acme", scopes: ["deploy"], tenant }),
      tenant,
    };
    stage.deps = { ...stage.deps, pool: async () => new RunPlan(own.pool) };
    const hubConnection = { host: "192.0.2.3" };
    await stage.network("shop", { subnets: "10.30.0.0/16/8/8", hubConnection });
    await stage.runner("node1", "192.0.4.11", { network: "shop", hubConnection });
    expect((await reserve(context, { runner: "node1" })).lease.pool).toBe("runner/training/node1");
    expect((await reserve(own, { runner: "node1" })).lease.pool).toBe("runner/shop/node1");
  });

  test("a search by name alone covers the runners of all networks", async () => {
    for (const network of ["training", "serving"]) await reserve(context, { network, runner: "node2" });
    expect(await findLeases(context, { runner: "node2" })).toHaveLength(2);
    expect(await findLeases(context, { runner: "serving/node2" })).toHaveLength(1);
    expect(await findLeases(context, { network: "training" })).toHaveLength(1);
  });
});

describe("what a container has on a runner", () => {
  const on = { network: "training", runner: "node1" };

  test("is found without a scan, however it got it", async () => {
    const { token } = await reserve(context, on);
    const used = await useAddress(context, { token, by: "c1" });
    await reserve(context, { ...on, by: "c2" });
    await importAddresses(context, [
      { ip: parseIp("10.10.1.50"), by: "c3" },
      { ip: parseIp("10.10.1.40"), by: "c3" },
    ]);
    const scanned: string[] = [];
    const pool = new Proxy(stage.pool.ipam, {
      get(target, key) {
        const member = Reflect.get(target, key);
        if (key === "leases")
          return (name: string, options: { owner?: string }) => {
            if (options.owner === undefined) scanned.push(name);
            return target.leases(name, options);
          };
        return typeof member === "function" ? member.bind(target) : member;
      },
    });
    const find = async (by: string, more: object = {}) =>
      (await findLeases({ pool }, { ...on, by, ...more })).map(ipOf);
    expect(await find("c1")).toEqual([ipOf(used)]);
    expect(await find("c2")).toHaveLength(1);
    expect(await find("c3")).toEqual(["10.10.1.40", "10.10.1.50"]);
    expect(await find("c3", { limit: 1 })).toEqual(["10.10.1.40"]);
    expect(await find("c9")).toEqual([]);
    expect((await release({ pool }, { by: "c3", ...on })).leases).toHaveLength(2);
    expect(await find("c3")).toEqual([]);
    expect(await find("c3", { state: "quarantined" })).toEqual(["10.10.1.40", "10.10.1.50"]);
    expect(scanned).toEqual([]);
  });
});

describe("a caller with a tenant", () => {
  const [acme, globex] = ["acme", "globex"].map((org) => ({ org, project: "shop" }));
  const as = (tenant: typeof acme): Context => ({ ...context, tenant });

  beforeEach(async () => {
    for (const tenant of [acme, globex])
      await stage.make("IPPool", tenant!.org, {
        ranges: [tenant === acme ? "10.30.0.0/28" : "10.31.0.0/28"],
        allocation: "lowest",
        tenant,
      });
  });

  test("sees pools and leases of its own and of none, and no others", async () => {
    for (const tenant of [acme, globex]) await reserve(as(tenant), { pool: tenant!.org });
    const [mine] = await reserveMany(as(acme), { pool: "web", count: 1 });
    await reserve(as(globex), { pool: "web" });
    const pools = (await poolUsages(as(acme))).map(({ pool }) => pool);
    expect(pools).toContain("pool/acme");
    expect(pools).toContain("pool/web");
    expect(pools).not.toContain("pool/globex");
    expect((await findLeases(as(acme))).map(({ pool }) => pool)).toEqual(["pool/acme", "pool/web"]);
    expect((await findLeases(context)).map(({ pool }) => pool)).toEqual([
      "pool/acme",
      "pool/globex",
      "pool/web",
      "pool/web",
    ]);
    expect(mine!.lease.tenant).toEqual(acme);
    const owners = (await historyOfPool(as(acme), "web")).map(({ tenant }) => tenant?.org);
    expect(owners).toEqual(["acme"]);
    expect(await historyOfPool(as(acme))).not.toContainEqual(expect.objectContaining({ pool: "pool/globex" }));
  });

  test("is refused where it names what belongs to another", async () => {
    const { lease, token } = await reserve(as(globex), { pool: "web" });
    const ip = lease.ranges[0]!.first;
    const refused = [
      showPool(as(acme), "globex"),
      historyOfPool(as(acme), "pool/globex"),
      historyOfAddress(as(acme), { pool: "globex", ip: parseIp("10.31.0.1") }),
      findLeases(as(acme), { pool: "globex" }),
      useAddress(as(acme), { token, by: "c1" }),
      useAddress(as(acme), { ip, by: "c1" }),
      free(as(acme), { ip }),
      showAddress(as(acme), { ip: parseIp("10.31.0.1") }),
    ];
    expect(await Promise.all(refused.map(codeOf))).toEqual(refused.map(() => "TENANT_MISMATCH"));
    expect(await findLeases(as(acme), { ip })).toEqual([]);
    expect(await codeOf(showPool(as(acme), "acme"))).toBe("done");
    expect(await codeOf(historyOfPool(as(acme), "acme"))).toBe("done");
    expect(await codeOf(historyOfPool(as(acme), "none"))).toBe("POOL_NOT_FOUND");
  });
});

test("pools are listed in pages", async () => {
  const names = (await poolUsages(context)).map(({ pool }) => pool);
  expect(names).toContain("pool/web");
  const paged: string[] = [];
  for (let after: string | undefined; paged.length < names.length; after = paged.at(-1)) {
    const page = await poolUsages(context, { limit: 2, ...(after !== undefined && { after }) });
    paged.push(...page.map(({ pool }) => pool));
    if (page.length === 0) break;
  }
  expect(paged).toEqual(names);
  expect((await poolUsages(context, { prefix: "runner/", limit: 1 })).map(({ pool }) => pool)).toEqual([
    "runner/serving/node2",
  ]);
});
