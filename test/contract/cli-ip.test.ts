import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { keyRing, signToken } from "../../provider/ipam/token";
import { Ctl, type Deployed, deploy, lifecyclesOn } from "../unit/cli/ctl";

/** The real command line on a SQLite file: reservations and their tokens. */
const ctl = new Ctl();
let deployed: Deployed;

beforeAll(async () => {
  deployed = await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
});
afterAll(() => ctl.remove());

const on = (runner: string): string[] => ["--network", "training", "--runner", runner];
const reserve = async (...args: string[]) => (await ctl.must("ip", "reserve", ...on("node1"), ...args))[0]!;

describe.sequential("overlayctl ip", { timeout: 60_000 }, () => {
  test("reserve returns an address of the runner, a token and an expiry; the token is valid for exactly that", async () => {
    const before = Date.now();
    const given = await reserve();
    expect(given).toMatchObject({ network: "training", runner: "node1", gateway: "10.128.64.1" });
    expect(given.ip).toMatch(/^10\.128\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.\d+$/);
    const seconds = (Date.parse(String(given.expiresAt)) - before) / 1000;
    expect(seconds).toBeGreaterThan(298);
    expect(seconds).toBeLessThan(330);
    const [valid] = await ctl.must("ip", "validate", String(given.token), "--runner", "node1");
    expect(valid).toMatchObject({ ip: given.ip, network: "training", runner: "node1", state: "reserved" });
    expect(await ctl.refusal("ip", "validate", String(given.token), "--runner", "node2")).toBe("1 TOKEN_RUNNER");
  });

  test("a reservation for a virtual machine has a ttl of half an hour; --ttl sets another one", async () => {
    const left = ({ expiresAt }: Record<string, unknown>) => (Date.parse(String(expiresAt)) - Date.now()) / 60_000;
    expect(left(await reserve("--vm"))).toBeCloseTo(30, 0);
    expect(left(await reserve("--ttl", "3600"))).toBeCloseTo(60, 0);
  });

  test("a token is used once; a used reservation does not expire; release --by returns the list", async () => {
    const { token, ip } = await reserve();
    expect(await ctl.must("ip", "use", "--token", String(token), "--by", "web")).toMatchObject([
      { ip, state: "used", usedBy: "web" },
    ]);
    expect(await ctl.refusal("ip", "use", "--token", String(token), "--by", "db")).toBe("1 TOKEN_USED");
    expect(await ctl.refusal("ip", "validate", String(token))).toBe("1 TOKEN_USED");
    expect(await ctl.refusal("ip", "release", "--token", String(token))).toBe("1 TOKEN_USED");
    expect(await ctl.must("ip", "release", "--by", "web", "--network", "training")).toMatchObject([
      { ip, usedBy: "web" },
    ]);
    expect(await ctl.must("ip", "release", "--by", "web")).toEqual([]);
    expect(await ctl.refusal("ip", "validate", String(token))).toBe("1 TOKEN_USED");
  });

  test("release by token releases an unused reservation, and may be repeated", async () => {
    const { token, ip } = await reserve("--ip", "10.128.64.77");
    expect(ip).toBe("10.128.64.77");
    expect(await ctl.must("ip", "release", "--token", String(token))).toMatchObject([{ ip: "10.128.64.77" }]);
    expect(await ctl.run("ip", "release", "--token", String(token))).toMatchObject({
      code: 0,
      stdout: "",
      stderr: "Nothing to release: it has ended already.\n",
    });
  });

  test("an unused reservation expires", async () => {
    const { token } = await reserve("--ttl", "1");
    await sleep(1100);
    expect(await ctl.refusal("ip", "use", "--token", String(token), "--by", "late")).toBe("1 TOKEN_EXPIRED");
  });

  test("forged and broken tokens are refused, each with its own code", async () => {
    const { token } = await reserve();
    const forged = signToken(
      { pool: "runner/training/node1", value: 1n, runner: "training/node1", owner: "x", leaseId: "y" },
      keyRing("a key of another ring"),
    );
    expect(await ctl.refusal("ip", "validate", forged)).toBe("1 TOKEN_SIGNATURE");
    expect(await ctl.refusal("ip", "validate", String(token).slice(0, -2))).toBe("1 TOKEN_FORMAT");
    expect(await ctl.refusal("ip", "validate", "nonsense")).toBe("1 TOKEN_FORMAT");
  });

  test("keys from the setting: rotated ones still verify, removed ones do not", async () => {
    const run = async (keys: string, ...args: string[]) => {
      const { child, ended } = ctl.start([...args, "--json"], { OVERLAY_TOKEN_KEYS: keys });
      child.stdin.end();
      return (await ended).json[0]!;
    };
    const [old, next] = ["the key of last year", "the key of this year"];
    const { token } = await run(old, "ip", "reserve", ...on("node1"));
    expect(await run(`${next},${old}`, "ip", "validate", String(token))).toMatchObject({ state: "reserved" });
    expect(await run(next, "ip", "validate", String(token))).toMatchObject({ error: "TOKEN_SIGNATURE" });
    expect(await run("short", "ip", "validate", String(token))).toMatchObject({ error: "SETTING_INVALID" });
  });

  test("keys of the store: a rotated one still verifies, a retired one does not", async () => {
    const validate = async ({ token }: Record<string, unknown>) =>
      (await ctl.run("ip", "validate", String(token), "--json")).json[0];
    const first = await reserve();
    await ctl.must("store", "keys", "rotate");
    const second = await reserve();
    expect([await validate(first), await validate(second)]).toMatchObject([{ ip: first.ip }, { ip: second.ip }]);
    await ctl.must("store", "keys", "rotate", "--keep", "1");
    expect([await validate(first), await validate(second)]).toMatchObject([
      { error: "TOKEN_SIGNATURE" },
      { ip: second.ip },
    ]);
  });

  test("a second request for the same container gets the same address; a second address in the network is refused", async () => {
    const first = await reserve("--by", "api");
    const again = await reserve("--by", "api");
    expect(again).toMatchObject({ ip: first.ip, leaseId: first.leaseId });
    expect(await ctl.must("ip", "validate", String(first.token))).toMatchObject([{ ip: first.ip }]);
    expect(await ctl.refusal("ip", "reserve", ...on("node2"), "--by", "api")).toBe("1 RESERVATION_EXISTS");
    await ctl.must("ip", "use", "--token", String(again.token), "--by", "api");
    expect(await ctl.refusal("ip", "reserve", ...on("node1"), "--by", "api")).toBe("1 RESERVATION_EXISTS");
  });

  test("use without a token takes a free address or the container's own reservation, and free releases it", async () => {
    const use = ["ip", "use", ...on("node2"), "--ip", "10.128.128.9", "--by"];
    expect(await ctl.must(...use, "cache")).toMatchObject([{ ip: "10.128.128.9", state: "used", usedBy: "cache" }]);
    expect(await ctl.must(...use, "cache")).toHaveLength(1);
    expect(await ctl.refusal(...use, "other")).toBe("1 IP_IN_USE");
    const { ip } = (await ctl.must("ip", "reserve", ...on("node2"), "--by", "queue"))[0]!;
    expect(await ctl.must("ip", "use", ...on("node2"), "--ip", String(ip), "--by", "queue")).toMatchObject([
      { usedBy: "queue" },
    ]);
    expect(await ctl.must("ip", "list", ...on("node2"))).toHaveLength(2);
    expect(await ctl.must("ip", "free", ...on("node2"), "--ip", "10.128.128.9")).toMatchObject([
      { ip: "10.128.128.9" },
    ]);
    expect(await ctl.refusal("ip", "free", ...on("node2"), "--ip", "10.128.128.9")).toBe("1 LEASE_NOT_FOUND");
  });

  test.each([
    [["--ip", "10.128.64.1"], "1 IP_OUTSIDE_POOL"],
    [["--ip", "10.128.64.254"], "1 IP_OUTSIDE_POOL"],
    [["--ip", "10.128.128.5"], "1 IP_OUTSIDE_POOL"],
    [["--ip", "8.8.8.8"], "1 IP_OUTSIDE_POOL"],
    [["--ip", "10.128.064.006"], "2 INPUT_INVALID"],
    [["--ip", "10.128.64"], "2 INPUT_INVALID"],
    [["--ttl", "0"], "2 INPUT_INVALID"],
    [["--ttl", "never"], "2 INPUT_INVALID"],
    [["--by", "two words"], "2 INPUT_INVALID"],
    [["--colour", "red"], "2 INPUT_INVALID"],
    [["--runner", "nobody"], "1 POOL_NOT_FOUND"],
    [["--network", "nowhere"], "1 POOL_NOT_FOUND"],
    [["--store", "memory"], "1 SETTING_INVALID"],
  ])("reserve %j is refused with %s", async (args, expected) => {
    expect(await ctl.refusal("ip", "reserve", ...on("node1"), ...args)).toBe(expected);
  });

  test("a taken address is refused with the holder's name", async () => {
    await reserve("--ip", "10.128.64.88", "--by", "holder");
    const { code, stderr } = await ctl.run("ip", "reserve", ...on("node1"), "--ip", "10.128.64.88");
    expect([code, stderr]).toEqual([
      1,
      "IP_IN_USE: Address 10.128.64.88 of runner node1 of network training is reserved by overlayctl/training/node1/holder. Request another value, or release that one first.\n",
    ]);
    expect(await ctl.refusal("ip", "release", "--by", "x", "--token", "y")).toBe("1 INPUT_INVALID");
    expect(await ctl.refusal("ip", "use", "--by", "x")).toBe("1 INPUT_INVALID");
  });

  test("six concurrent processes never get the same address", async () => {
    const given = await Promise.all(Array.from({ length: 6 }, () => reserve()));
    expect(new Set(given.map(({ ip }) => ip)).size).toBe(6);
    expect((await ctl.run("store", "check")).code).toBe(0);
  });

  test("a heartbeat renews lastSeen", async () => {
    const [seen] = await ctl.must("heartbeat", ...on("node1"));
    expect(seen).toMatchObject({ network: "training", runner: "node1", runnerId: 1 });
    expect(Date.now() - Date.parse(String(seen!.lastSeen))).toBeLessThan(5000);
  });

  test("a runner's pool of addresses survives an update, and prevents its delete while it is in use", async () => {
    await reserve();
    const count = await ctl.withPool(async (pool) => (await pool.leases("runner/training/node1")).length);
    await ctl.withPool(async (pool) => {
      const { runners } = lifecyclesOn(pool);
      const olds = deployed.runners.node1!;
      const news = { ...olds, labels: { rack: "7" } };
      await runners.update("training/node1", olds, news);
      expect(await pool.leases("runner/training/node1")).toHaveLength(count);
      await expect(runners.delete(news)).rejects.toThrow(/^POOL_IN_USE/);
    });
  });

  test("in a dual-stack network a container gets an address of each family, and is found by either one", async () => {
    const dual = new Ctl();
    await dual.withPool((pool) => deploy(pool, ["node1"], { subnets: ["10.64.0.0/16/6/10", "fd00:1::/48/16/64"] }));
    const [given] = await dual.must("ip", "reserve", ...on("node1"), "--by", "web");
    expect(given).toMatchObject({ gateway: "10.64.4.1", gateway6: "fd00:1:0:1::1" });
    expect(given!.ip).toMatch(/^10\.64\.[4-7]\./);
    expect(given!.ip6).toMatch(/^fd00:1:0:1:/);
    const used = await dual.must("ip", "use", ...on("node1"), "--ip", String(given!.ip6), "--by", "web");
    expect(used).toMatchObject([{ ip: given!.ip, ip6: given!.ip6, state: "used" }]);
    expect(await dual.must("store", "check")).toEqual([]);
    dual.remove();
  });
});
