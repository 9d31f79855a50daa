import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { openIpam } from "../../../provider/ipam";
import { claimOne } from "../../../provider/ipam/interface";
import type { Observer } from "../../../provider/ipam/session";
import type { PoolSelector, Store } from "../../../provider/ipam/types";
import { Metrics } from "../../../service/metrics/metrics";
import { by, createPoolOn, ranges, requestFor } from "../../contract/fixture";
import { Stage } from "../lifecycle/stage";
import { TestService } from "./service";

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0)) await end();
});

const OPTIONS = { version: "1.2.3", node: "v20.0.0", mostPools: 1000 };

/** The values of a scrape, by series; labels that are empty are left out. */
type Scrape = Record<string, number>;

function parse(text: string): Scrape {
  const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return Object.fromEntries(
    lines.map((line) => {
      const [, series = "", value] = /^(.+) (\S+)$/.exec(line)!;
      return [series.replace(/\w+="",?/g, "").replace(/,}/, "}"), Number(value)];
    }),
  );
}

async function start(
  mostPools = OPTIONS.mostPools,
): Promise<{ pool: Store; metrics: Metrics; pass(seconds: number): void; scrape(): Promise<Scrape> }> {
  let now = 0;
  const metrics = new Metrics({ ...OPTIONS, mostPools, now: () => now });
  const pool = await openIpam("memory:", { offerTtl: 60, quarantine: 300, observer: metrics.observer });
  ends.push(() => pool.end());
  const pass = (seconds: number) => {
    now += seconds * 1000;
  };
  return { pool, metrics, pass, scrape: async () => parse(await metrics.render(pool)) };
}

/** The series of pools in a scrape, without the address spaces. */
const onlyPools = (scrape: Scrape, name: string): Scrape =>
  Object.fromEntries(
    Object.entries(scrape).filter(([series]) => series.startsWith(`${name}{`) && !series.includes('"space')),
  );

describe("pools", () => {
  test("have gauges with their tenant and type", async () => {
    const stage = await Stage.up();
    await stage.network();
    await stage.runner("node1", "192.0.2.11");
    const tenant = { org: "acme", project: "shop" };
    await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], type: "loadBalancer", tenant });
    await stage.make("IPReservation", "first", { pool: "web", tenant });
    const { body } = await (await TestService.on(stage.pool.ipam, { noAuth: true })).send("GET /metrics");
    const scrape = parse(body);
    const web = '{org_id="acme",project_id="shop",pool_type="loadBalancer",pool="pool/web"}';
    expect(scrape).toMatchObject({
      [`overlay_ipam_pool_total${web}`]: 16,
      [`overlay_ipam_pool_allocated${web}`]: 1,
      [`overlay_ipam_pool_available${web}`]: 15,
      [`overlay_ipam_pool_offered${web}`]: 0,
      [`overlay_ipam_pool_quarantined${web}`]: 0,
      'overlay_ipam_pool_allocated{pool_type="network",pool="network/training"}': 1,
      'overlay_ipam_pool_allocated{pool_type="runner",pool="runner/training/node1"}': 0,
      overlay_store_up: 1,
    });
    expect(scrape['overlay_ipam_pool_total{pool_type="space",pool="space/default"}']).toBeGreaterThan(1e38);
  });

  test("count offers, quarantine, allocations, releases and failures", async () => {
    const { pool, scrape } = await start();
    await createPoolOn(pool, { ranges: ranges("10.0.0.0/30") });
    const lease = await claimOne(pool, by("a"));
    await pool.claim([by("b")]);
    await pool.offer(by("c"));
    await pool.release("pool/p", lease.leaseId);
    await expect(claimOne(pool, requestFor("d", "10.0.0.1"))).rejects.toThrow();
    await expect(claimOne(pool, requestFor("e", "10.9.9.9"))).rejects.toThrow();
    await expect(claimOne(pool, requestFor("f", "10.9.9.9"))).rejects.toThrow();
    expect(await scrape()).toMatchObject({
      'overlay_ipam_pool_allocated{pool="pool/p"}': 2,
      'overlay_ipam_pool_available{pool="pool/p"}': 2,
      'overlay_ipam_pool_offered{pool="pool/p"}': 1,
      'overlay_ipam_pool_quarantined{pool="pool/p"}': 1,
      'overlay_ipam_allocations_total{pool="pool/p",reason="claimed"}': 2,
      'overlay_ipam_releases_total{pool="pool/p",reason="released"}': 1,
      'overlay_ipam_failures_total{pool="pool/p",reason="IP_OUTSIDE_POOL"}': 2,
    });
  });

  test("past the limit are summed, and counters never go down when pools come and go", async () => {
    const { pool, scrape, pass } = await start(3);
    const makers = [];
    for (const [i, name] of ["pool/a", "pool/b", "pool/c", "pool/d"].entries()) {
      makers.push(await createPoolOn(pool, { name, ranges: ranges(`10.${i}.0.0/24`) }));
      await pool.claim([by("x", { pool: name })]);
      await pool.claim([by("y", { pool: name })]);
    }
    const first = await scrape();
    const allocated = onlyPools(first, "overlay_ipam_pool_allocated");
    expect(Object.values(allocated).reduce((a, b) => a + b)).toBe(8);
    expect(Object.keys(allocated)).toHaveLength(4);
    expect(first['overlay_ipam_pool_allocated{pool="other"}']).toBe(2);
    expect(first['overlay_ipam_pool_total{pool="other"}']).toBe(256);

    for (const name of ["x", "y"])
      await pool.release("pool/a", (await pool.find({ pool: "pool/a", owner: name }))!.leaseId);
    await pool.close(makers[0]!.pool, makers[0]!.leaseId);
    await pool.release(makers[0]!.pool, makers[0]!.leaseId);
    await pool.claim([by("z", { pool: "pool/d" })]);
    pass(5);
    const second = await scrape();
    const other = 'overlay_ipam_allocations_total{pool="other",reason="claimed"}';
    const claims = onlyPools(second, "overlay_ipam_allocations_total");
    expect(Object.keys(claims).join()).not.toContain("pool/a");
    expect(claims['overlay_ipam_allocations_total{pool="pool/d",reason="claimed"}']).toBe(1); // it has a name now
    expect(second[other]).toBeGreaterThanOrEqual(first[other]! + 2); // and those of pool/a
    const sum = (scrape: Scrape) =>
      Object.values(onlyPools(scrape, "overlay_ipam_allocations_total")).reduce((a, b) => a + b);
    expect(sum(second) - sum(first)).toBe(1);
  });

  test("are read from the store at most every five seconds, but for a pool that is new", async () => {
    let reads = 0;
    const { pool, metrics } = await start();
    await createPoolOn(pool, { ranges: ranges("10.0.0.0/30") });
    const pools: Store["pools"] = (selector) => {
      reads++;
      return pool.pools(selector);
    };
    const counted = { ...reader(pool), pools } as unknown as Store;
    for (let i = 0; i < 5; i++) await metrics.render(counted);
    expect(reads).toBe(1);
    await createPoolOn(pool, { name: "pool/new", ranges: ranges("10.1.0.0/30") });
    await pool.claim([by("a", { pool: "pool/new" })]);
    expect(parse(await metrics.render(counted))).toHaveProperty('overlay_ipam_pool_allocated{pool="pool/new"}', 1);
    expect(reads).toBe(2);
  });

  test("have no values while the store does not answer", async () => {
    const { pool, metrics } = await start();
    await createPoolOn(pool, { ranges: ranges("10.0.0.0/30") });
    await metrics.render(pool);
    const fail = async () => {
      throw new OverlayError("STORE_UNAVAILABLE", "The server does not answer.", "Wait.");
    };
    const broken = { ...reader(pool), pools: fail, events: fail } as unknown as Store;
    const scrape = parse(await new Metrics(OPTIONS).render(broken));
    expect(scrape.overlay_store_up).toBe(0);
    await createPoolOn(pool, { name: "pool/new", ranges: ranges("10.1.0.0/30") });
    await pool.claim([by("a", { pool: "pool/new" })]); // is not in the cache
    const later = parse(await metrics.render(broken));
    expect(later.overlay_store_up).toBe(0);
    for (const each of [scrape, later]) expect(onlyPools(each, "overlay_ipam_pool_total")).toEqual({});
    const never = () => new Promise<never>(() => {});
    const silent = {
      pools: never,
      events: never,
      admin: { webhooks: { deliveries: never } },
    } as unknown as Store;
    const started = performance.now();
    expect(parse(await new Metrics(OPTIONS).render(silent)).overlay_store_up).toBe(0);
    expect(performance.now() - started).toBeLessThan(5000); // Prometheus gives up after ten seconds
    expect(parse(await metrics.render(pool))).toMatchObject({
      overlay_store_up: 1,
      'overlay_ipam_allocations_total{pool="pool/new",reason="claimed"}': 1,
    });
  });
});

const reader = (pool: Store) => ({
  pools: (selector: PoolSelector) => pool.pools(selector),
  events: (options: { after?: number }) => pool.events(options),
  admin: pool.admin,
});

test("the store has latencies, conflicts and errors, without refusals", async () => {
  const metrics = new Metrics(OPTIONS);
  const observer: Required<Observer> = metrics.observer;
  observer.transaction("read", 0.004);
  observer.transaction("write", 0.3);
  observer.transaction("write", 0.001);
  observer.operationFailed(new OverlayError("STORE_UNAVAILABLE", "The server does not answer.", "Wait."));
  observer.operationFailed(new OverlayError("EVENTS_LOST", "There is no event 7.", "List all."));
  observer.operationFailed(new TypeError("x"));
  observer.conflict();
  const { pool } = await start();
  expect(parse(await metrics.render(pool))).toMatchObject({
    'overlay_store_transaction_duration_seconds_count{kind="read"}': 1,
    'overlay_store_transaction_duration_seconds_bucket{le="0.25",kind="write"}': 1,
    'overlay_store_transaction_duration_seconds_bucket{le="0.5",kind="write"}': 2,
    'overlay_store_errors_total{code="STORE_UNAVAILABLE"}': 1,
    'overlay_store_errors_total{code="INTERNAL"}': 1,
    overlay_store_conflicts_total: 1,
    'overlay_build_info{version="1.2.3",node="v20.0.0"}': 1,
  });
});

test("requests are counted by route, never by URL", async () => {
  const { pool } = await start();
  const service = await TestService.on(pool, { noAuth: true });
  for (const path of ["/healthz", "/healthz?x=1", "/no/such/path", "/api/overlay/ip/reservations?owner=a"])
    await service.send(`GET ${path}`);
  await service.send("DELETE /api/overlay/webhooks/12345678");
  const scrape = parse((await service.send("GET /metrics")).body);
  const counts = Object.entries(scrape).filter(([series]) =>
    series.startsWith("overlay_http_request_duration_seconds_count"),
  );
  expect(Object.fromEntries(counts)).toEqual({
    'overlay_http_request_duration_seconds_count{method="GET",route="/healthz",status="200"}': 2,
    'overlay_http_request_duration_seconds_count{method="GET",route="none",status="404"}': 1,
    'overlay_http_request_duration_seconds_count{method="GET",route="/api/overlay/ip/reservations",status="200"}': 1,
    'overlay_http_request_duration_seconds_count{method="DELETE",route="/api/overlay/webhooks/:id",status="404"}': 1,
  });
});

describe("rules and dashboard", () => {
  const read = (file: string) => readFileSync(join(__dirname, "../../../deploy", file), "utf8");
  const rules = read("prometheus/overlay.rules.yml");
  const dashboard = JSON.parse(read("grafana/overlay.json"));
  const PREFIXED = /\b(?:overlay|process|nodejs)_[a-z0-9_]+\b/g;

  /** Names as queries write them; a histogram has three. */
  async function exported(): Promise<Set<string>> {
    const { pool, metrics } = await start();
    const types = [...(await metrics.render(pool)).matchAll(/^# TYPE (\w+) (\w+)$/gm)];
    return new Set(
      types.flatMap(([, name, type]) =>
        type === "histogram" ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name!],
      ),
    );
  }

  const queries: string[] = dashboard.panels.flatMap(({ targets = [] }) =>
    targets.map(({ expr }: { expr: string }) => expr),
  );

  test("use only metrics that there are", async () => {
    const names = await exported();
    const variables = dashboard.templating.list.map((each: { query: unknown }) => JSON.stringify(each.query));
    const used = [rules, ...queries, ...variables].flatMap((text) => text.match(PREFIXED) ?? []);
    expect(used.length).toBeGreaterThan(40);
    expect([...new Set(used)].filter((name) => !names.has(name))).toEqual([]);
  });

  test("show every metric of our own somewhere", async () => {
    const names = [...(await exported())].filter((name) => name.startsWith("overlay_") && !/_(sum|count)$/.test(name));
    const text = [rules, ...queries].join("\n");
    expect(names.filter((name) => !text.includes(name))).toEqual(["overlay_build_info"]);
  });

  test("the dashboard has panels with ids, places and descriptions of their own", () => {
    const { panels, uid, schemaVersion } = dashboard;
    expect({ uid, schemaVersion }).toEqual({ uid: "pulumi-overlay", schemaVersion: 39 });
    const key = (name: string) => panels.map((panel: Record<string, unknown>) => JSON.stringify(panel[name]));
    for (const name of ["id", "gridPos"]) expect(new Set(key(name)).size).toBe(panels.length);
    for (const { type, title, description, targets } of panels)
      if (type !== "row") expect([title, description, targets.length > 0]).toEqual([title, expect.any(String), true]);
  });
});
