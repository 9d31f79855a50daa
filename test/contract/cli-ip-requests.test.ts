import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Ctl, deploy } from "../unit/cli/ctl";

/** `overlayctl ip` on a SQLite file: batches, any runner, repeated requests, validation without the store, and pages. */
const ctl = new Ctl();

beforeAll(() => ctl.withPool((pool) => deploy(pool, ["node1", "node2"])));
afterAll(() => ctl.remove());

describe.sequential("overlayctl ip", { timeout: 60_000 }, () => {
  test("--count reserves several at once, one line for each, all or none", async () => {
    const given = await ctl.must("ip", "reserve", "--runner", "node2", "--count", "3");
    expect(given).toHaveLength(3);
    expect(new Set(given.map(({ ip }) => ip)).size).toBe(3);
    for (const { token, ip } of given)
      expect(await ctl.must("ip", "release", "--token", String(token))).toMatchObject([{ ip }]);
    const { stdout } = await ctl.run("ip", "reserve", "--runner", "training/node2", "--count", "2", "--ttl", "1");
    expect(stdout.split("\n")[0]!.split(/ +/)).toEqual([
      ..."ip network runner pool state expiresAt gateway token".split(" "),
    ]);
    expect(stdout.trim().split("\n")).toHaveLength(3);
    expect(await ctl.refusal("ip", "reserve", "--runner", "node2", "--count", "65")).toBe("2 INPUT_INVALID");
    expect(await ctl.refusal("ip", "reserve", "--runner", "node2", "--count", "2", "--by", "x")).toBe(
      "1 INPUT_INVALID",
    );
  });

  test("--any-runner chooses runners by --placement; without it a runner must be given", async () => {
    const any = ["ip", "reserve", "--network", "training", "--any-runner", "--ttl", "5"];
    const spread = await ctl.must(...any, "--count", "2", "--placement", "spread");
    expect(spread.every(({ network }) => network === "training")).toBe(true);
    expect(await ctl.must(...any, "--ip", "10.128.128.44")).toMatchObject([
      { runner: "node2", gateway: "10.128.128.1" },
    ]);
    expect(await ctl.refusal("ip", "reserve", "--network", "training")).toBe("1 INPUT_INVALID");
    expect(await ctl.refusal("ip", "reserve", "--any-runner")).toBe("1 INPUT_INVALID");
    expect(await ctl.refusal(...any, "--placement", "best")).toBe("2 INPUT_INVALID");
  });

  test("the same --key or --owner gives the same reservation, also if it is used, and no other request", async () => {
    for (const name of [
      ["--key", "request 1"],
      ["--owner", "job-1"],
    ]) {
      const again = () => ctl.must("ip", "reserve", "--network", "training", "--any-runner", ...name);
      const [first] = await again();
      await ctl.must("ip", "use", "--token", String(first!.token), "--by", `of-${name[1]!.replace(" ", "")}`);
      expect(await again()).toMatchObject([{ leaseId: first!.leaseId, state: "used" }]);
      expect(await ctl.refusal("ip", "reserve", "--runner", "node1", ...name)).toBe("1 RESERVATION_EXISTS");
      await ctl.must("ip", "release", "--by", `of-${name[1]!.replace(" ", "")}`);
      expect((await again())[0]!.leaseId).not.toBe(first!.leaseId);
    }
  });

  test("validate --offline needs the keys and not the store, and says so", async () => {
    const run = async (env: Record<string, string>, ...args: string[]) => {
      const { child, ended } = ctl.start([...args, "--json"], env);
      child.stdin.end();
      return (await ended).json[0]!;
    };
    const keys = { OVERLAY_TOKEN_KEYS: "a key for validation without the store" };
    const { token, ip } = await run(keys, "ip", "reserve", "--runner", "node1");
    const away = { OVERLAY_STORE: "postgres://127.0.0.1:1/none" };
    const check = ["ip", "validate", String(token), "--runner"];
    expect(await run({ ...keys, ...away }, ...check, "node1", "--offline")).toMatchObject({ ip, checked: "signature" });
    expect(await run({ ...keys, ...away }, ...check, "node2", "--offline")).toMatchObject({ error: "TOKEN_RUNNER" });
    expect(await run(away, ...check, "node1", "--offline")).toMatchObject({ error: "TOKEN_KEYS_MISSING" });
    expect(await run(keys, ...check, "node1")).toMatchObject({ ip, checked: "store" });
  });

  test("list --limit shows a page, and names the option for the next one", async () => {
    await ctl.must("ip", "reserve", "--runner", "node1", "--count", "7", "--owner", "paged");
    const list = ["ip", "list", "--owner", "paged"];
    const all = (await ctl.must(...list)).map(({ ip }) => ip);
    expect(all).toHaveLength(7);
    const listed: unknown[] = [];
    for (let more: string[] = []; listed.length < all.length; ) {
      const { json, stderr } = await ctl.run(...list, "--limit", "3", ...more, "--json");
      listed.push(...json.map(({ ip }) => ip));
      const [, cursor] = /^There are more: --after (\S+)\n$/.exec(stderr) ?? [];
      if (cursor === undefined) break;
      more = ["--after", cursor];
    }
    expect(listed).toEqual(all);
    expect(await ctl.refusal("ip", "list", "--after", "nonsense")).toBe("2 INPUT_INVALID");
    expect(await ctl.refusal("ip", "list", "--limit", "0")).toBe("2 INPUT_INVALID");
  });
});
