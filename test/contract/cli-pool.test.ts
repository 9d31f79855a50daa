import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CODES } from "../../provider/errors";
import { openIpam } from "../../provider/ipam";
import { loadSqlite } from "../../provider/ipam/store/sqlite-file";
import { Ctl, deploy } from "../unit/cli/ctl";
import { rowsAt } from "./store-rows";

/** The real command line on a SQLite file: showing pools, importing addresses, and moving a store. */
const ctl = new Ctl();
const file = (name: string, text: string): string => {
  writeFileSync(join(ctl.folder, name), text);
  return name;
};
const raw = (url = ctl.store) => rowsAt(url);
const damage = async (sql: string, url = ctl.store) => {
  const db = new (await loadSqlite()).DatabaseSync(url.slice("sqlite:".length), { readOnly: false });
  db.exec(sql);
  db.close();
};

beforeAll(() => ctl.withPool((pool) => deploy(pool, ["node1", "node2"])));
afterAll(() => ctl.remove());

describe.sequential("overlayctl import", { timeout: 60_000 }, () => {
  const used = "ip,by,runner\n10.128.64.20,web,node1\n10.128.64.21,,\n10.128.128.20,web,node2\n";

  test("a dry run prints what would be imported, and writes nothing", async () => {
    const before = await raw();
    expect(await ctl.must("import", file("used.csv", used), "--dry-run")).toMatchObject([
      { ip: "10.128.64.20", network: "training", runner: "node1", state: "used", usedBy: "web" },
      { ip: "10.128.64.21", network: "training", runner: "node1", state: "reserved" },
      { ip: "10.128.128.20", network: "training", runner: "node2", state: "used", usedBy: "web" },
    ]);
    expect(await raw()).toEqual(before);
  });

  test("all addresses are imported, once", async () => {
    expect(await ctl.must("import", "used.csv")).toHaveLength(3);
    expect(await ctl.must("import", "used.csv")).toEqual([]);
    const [lease, other] = await ctl.must("ip", "list", "--runner", "node1");
    expect(lease).toMatchObject({ ip: "10.128.64.20", state: "used", usedBy: "web" });
    expect(other).toMatchObject({
      ip: "10.128.64.21",
      state: "reserved",
      owner: "overlayctl/training/node1/imported-10.128.64.21",
    });
    expect(other!.expiresAt).toBeUndefined();
    const taken = ["ip", "reserve", "--network", "training", "--runner", "node1", "--ip", "10.128.64.20"];
    expect(await ctl.refusal(...taken)).toBe("1 IP_IN_USE");
  });

  test("JSON is read too, such as the output of `ip list --json`", async () => {
    const listed = (await ctl.run("ip", "list", "--json")).stdout;
    expect(await ctl.must("import", file("listed.jsonl", listed))).toEqual([]);
    const json = JSON.stringify([{ ip: "10.128.64.30", by: "db" }, "10.128.64.31"]);
    expect(await ctl.must("import", file("more.json", json))).toMatchObject([
      { ip: "10.128.64.30" },
      { ip: "10.128.64.31" },
    ]);
  });

  test("every conflict is reported at once, and then nothing is written", async () => {
    const before = await raw();
    const lines = [
      "10.128.64.50,new",
      "10.128.64.20,other",
      "10.128.64.1,gateway",
      "10.9.9.9,abroad",
      "10.128.192.5,x",
      "10.128.64.50,twice",
    ];
    const { code, stdout, stderr } = await ctl.run("import", file("bad.csv", lines.join("\n")));
    expect([code, stdout]).toEqual([1, ""]);
    expect(stderr.split("\n").map((line) => line.trim())).toEqual([
      "IP_IN_USE: 5 of 6 addresses in bad.csv cannot be recorded; nothing was written.",
      "line 2, 10.128.64.20: IP_IN_USE: Address 10.128.64.20 of runner node1 of network training is used by overlayctl/training/node1/web. Request another value, or release that one first.",
      "line 3, 10.128.64.1: IP_OUTSIDE_POOL: Address 10.128.64.1 is not in runner node1 of network training (10.128.64.2-10.128.64.253, 10.128.64.255-10.128.127.254). Request one inside it.",
      "line 4, 10.9.9.9: it is in no network and no pool of this store",
      "line 5, 10.128.192.5: it is in the subnet of id 3 of network training, which no runner has",
      "line 6, 10.128.64.50: IP_IN_USE: Address 10.128.64.50 of runner node1 of network training is used by overlayctl/training/node1/new. Request another value, or release that one first.",
      "Correct the file or release the conflicting addresses, and run again.",
      "",
    ]);
    expect(await raw()).toEqual(before);
  });

  test.each([
    [
      "address,container\n10.128.64.060,x\n,y\n10.128.64.61,a b",
      [
        "line 2: '10.128.64.060' is not an IP address",
        "line 3: '' is not an IP address",
        "line 4: by is not a plain name",
      ],
    ],
    ['[{"ip":', ["INPUT_INVALID: broken.txt is not JSON"]],
  ])("a file with invalid lines is rejected with all of them", async (text, expected) => {
    const { code, stderr } = await ctl.run("import", file("broken.txt", text));
    expect(code).toBe(1);
    for (const part of expected) expect(stderr).toContain(part);
  });
});

describe.sequential("overlayctl pool", { timeout: 60_000 }, () => {
  test("list shows how full each pool is", async () => {
    expect(await ctl.must("pool", "list")).toMatchObject([
      {
        pool: "network/training",
        range: "1-63",
        capacity: 63,
        allocated: 2,
        offered: 0,
        quarantined: 0,
        utilization: 3.17,
      },
      { pool: "runner/training/node1", capacity: 12285, allocated: 4, utilization: 0.03 },
      { pool: "runner/training/node2", capacity: 12285, allocated: 1 },
      { pool: "space/default", allocated: 1048576, utilization: 0 },
    ]);
    const { stdout } = await ctl.run("pool", "list");
    expect(stdout.split("\n")[0]).toMatch(/^pool +range +capacity +allocated +offered +quarantined +utilization$/);
    expect(stdout).not.toContain("\u001b");
  });

  test.each([
    ["pool", "There is no pool in this store yet."],
    ["ip", "No address is held there."],
  ])("%s list of an empty store prints a note, and nothing with --json", async (what, sentence) => {
    const store = `sqlite:${join(ctl.folder, "empty.db")}`;
    await ctl.withPool(async () => {}, store);
    const empty = ["--store", store];
    expect(await ctl.run(what, "list", ...empty)).toMatchObject({ code: 0, stdout: "", stderr: `${sentence}\n` });
    expect(await ctl.must(what, "list", ...empty)).toEqual([]);
  });

  test.each([
    ["pool", "list"],
    ["ip", "list"],
    ["history", "web"],
    ["ip", "free", "--ip", "10.0.0.1", "--pool", "web"],
  ])("a command that needs what is in a store does not make one: %s %s", async (...words) => {
    const file = join(ctl.folder, "wrong", "pool.db");
    const { code, stderr } = await ctl.run(...words, "--store", `sqlite:${file}`);
    expect([code, stderr]).toEqual([1, expect.stringContaining(`STORE_UNAVAILABLE: There is no store at ${file}.`)]);
    expect(existsSync(join(ctl.folder, "wrong"))).toBe(false);
  });

  test.each([
    ["--json", "pool", "list"],
    ["pool", "--json", "list"],
    ["--json", "--store", `sqlite:${join(ctl.folder, "pool.db")}`, "pool", "list"],
    ["--json", `--store=sqlite:${join(ctl.folder, "pool.db")}`, "history", "network/training"],
  ])("the options of all commands may stand before the command: %s %s %s %s", async (...words) => {
    const { code, json } = await ctl.run(...words);
    expect([code, json.length > 0]).toEqual([0, true]);
  });

  test("--json without a command, or with one that does not exist, is named in JSON", async () => {
    for (const [words, what] of [
      [["--json"], "No command given."],
      [["--json", "pool"], "No command given."],
      [["--json", "pol", "list"], "Unknown command 'pol' (Did you mean pool?)"],
    ] as const)
      expect(await ctl.run(...words)).toMatchObject({ code: 2, json: [{ error: "INPUT_INVALID", what }] });
  });

  test("list --warn ends with 3 when a pool is filled so far, and names it", async () => {
    const { code, stderr } = await ctl.run("pool", "list", "--warn", "3");
    expect([code, stderr]).toEqual([3, "warning: network training is 3.17 % full (2 of 63); --warn is 3 %.\n"]);
    expect(await ctl.run("pool", "list", "--warn", "80")).toMatchObject({ code: 0, stderr: "" });
    expect(await ctl.refusal("pool", "list", "--warn", "most")).toBe("2 INPUT_INVALID");
    expect(await ctl.refusal("pool", "lst")).toBe("2 INPUT_INVALID");
  });

  test("history and ip show print owner, change and time for an address", async () => {
    const at = ["--ip", "10.128.64.99"];
    await ctl.must("ip", "use", ...at, "--by", "seen");
    await ctl.must("ip", "free", ...at);
    const events = await ctl.must("history", "10.128.64.99");
    expect(events).toMatchObject(
      ["claimed", "released"].map((what) => ({ what, value: "10.128.64.99", usedBy: "seen" })),
    );
    for (const { by } of events) expect(by).toMatch(/^.+@.+$/);
    expect(await ctl.must("ip", "show", "10.128.64.99")).toMatchObject([
      { ip: "10.128.64.99", state: "quarantined" },
      { before: "10.128.64.99", usedBy: "seen", end: "released" },
    ]);
    expect(await ctl.must("history", "runner/training/node1")).not.toEqual([]);
  });

  test("show prints the leases with owner, state and expiry", async () => {
    const [pool, ...leases] = await ctl.must("pool", "show", "network/training");
    expect(pool).toMatchObject({ pool: "network/training", kind: "id", allocation: "lowest", capacity: 63 });
    expect(leases).toMatchObject([
      { value: "1", state: "reserved", type: "RunnerSubnet", childPool: "runner/training/node1" },
      { value: "2", state: "reserved", owner: "organization/urn:pulumi:dev::shop::overlay:index:RunnerSubnet::node2" },
    ]);
    expect(await ctl.refusal("pool", "show", "training")).toBe("1 POOL_NOT_FOUND");
    expect((await ctl.run("pool", "show")).code).toBe(2);
  });
});

describe.sequential("overlayctl store", { timeout: 60_000 }, () => {
  test("check finds faults, and repairs the rows that are derived from leases", async () => {
    await damage("DELETE FROM free_range WHERE pool = 'network/training'");
    const { code, json } = await ctl.run("store", "check", "--json");
    expect([code, json]).toMatchObject([1, [{ pool: "network/training", repairable: true, repaired: false }]]);
    expect((await ctl.run("store", "check", "--repair")).code).toBe(0);
    expect((await ctl.run("store", "check")).stdout).toBe("The store has no problems.\n");
  });

  test("check finds a commit of a clock that was ahead; nothing is allocated until it is repaired", async () => {
    const ahead = await openIpam(ctl.store, { offerTtl: 0, quarantine: 0, clock: () => Date.now() + 86_400_000 });
    await ahead.admin.replaceSecret("ahead", () => "x");
    await ahead.end();
    expect(await ctl.refusal("pool", "list")).toBe("1 STORE_CLOCK");
    const { code, json } = await ctl.run("store", "check", "--json");
    expect([code, json]).toMatchObject([1, [{ pool: "", repairable: true, repaired: false }]]);
    expect((await ctl.run("store", "check", "--repair")).code).toBe(0);
    expect((await ctl.run("store", "check")).stdout).toBe("The store has no problems.\n");
  });

  test("dump prints all rows by the names of their columns, and never the key of the tokens", async () => {
    await ctl.must("ip", "reserve", "--network", "training", "--runner", "node1");
    const secret = await ctl.withPool((pool) => pool.admin.findSecret("tokenKeys"));
    const { stdout, json } = await ctl.run("store", "dump");
    expect(stdout).not.toContain(secret);
    expect(json).toContainEqual({ table: "secret", key: "tokenKeys" });
    expect(json).toHaveLength((await raw()).length);
    expect(json.find(({ uid, table }) => table === "lease" && uid)).toMatchObject({ pool: expect.any(String) });
    expect(new Set(json.map(({ table }) => table))).toEqual(
      new Set(["store", "epoch", "pool", "lease", "free_range", "event", "secret"]),
    );
  });

  test("migrate moves everything to an empty store, tokens included, checks it, and back", async () => {
    const [{ token, ip } = {}] = await ctl.must("ip", "reserve", "--network", "training", "--runner", "node2");
    const to = `sqlite:${join(ctl.folder, "new.db")}`;
    const rows = await raw();
    expect(await ctl.must("store", "migrate", ctl.store, to)).toEqual([
      { rows: rows.length - 1, pools: 4, leases: 11, problems: 0, closedSeconds: expect.any(Number) },
    ]);
    expect(await raw(to)).toEqual(rows);
    expect(await ctl.must("ip", "validate", String(token), "--store", to)).toMatchObject([{ ip }]);
    expect(await ctl.refusal("store", "migrate", ctl.store, to)).toBe("1 STORE_MOVED");
    expect(await ctl.refusal("store", "migrate", ctl.store, "mysql://x")).toBe("1 SETTING_INVALID");
    expect(await ctl.refusal("pool", "list")).toBe("1 STORE_MOVED");
    expect((await ctl.run("store", "check", "--repair")).stderr).toContain(`was moved to ${to}.`);
    expect((await ctl.run("store", "check")).code).toBe(0);
    const [head] = (await ctl.run("store", "dump")).json;
    expect(head).toMatchObject({ table: "store", move: JSON.stringify({ to }) });
    await ctl.must("store", "migrate", to, ctl.store);
    expect(await raw()).toEqual(rows);
  });

  test("a store that is only half copied cannot be used, and an interrupted move starts again", async () => {
    const to = `sqlite:${join(ctl.folder, "half.db")}`;
    await ctl.withPool((pool) => pool.admin.replaceSecret("half", () => "x"), to);
    await damage(`UPDATE store SET move = '${JSON.stringify({ from: ctl.store, move: "m" })}'`, to);
    expect(await ctl.refusal("pool", "list", "--store", to)).toBe("1 STORE_MOVED");
    expect(await ctl.refusal("store", "migrate", to, ctl.store)).toBe("1 STORE_MOVED");
    const rows = await raw();
    await ctl.must("store", "migrate", ctl.store, to);
    expect(await raw(to)).toEqual(rows);
  });

  test("a file that is not a store, and an unknown command, are refused", async () => {
    file("text.db", "not a database, but long enough to be looked at as one ".repeat(50));
    expect(await ctl.refusal("pool", "list", "--store", `sqlite:${join(ctl.folder, "text.db")}`)).toBe(
      "1 STORE_CORRUPT",
    );
    expect(readFileSync(join(ctl.folder, "text.db"), "utf8")).toMatch(/^not a database/);
    expect((await ctl.run("pool", "fill")).code).toBe(2);
    expect((await ctl.run("--help")).code).toBe(0);
  });
});

describe("commands that only read", () => {
  test.each([
    [["store", "check"]],
    [["store", "dump"]],
    [["store", "reopen"]],
    [["store", "migrate", "sqlite:missing.db", "sqlite:target.db"]],
    [["pool", "list"]],
  ])("overlayctl %j on a path without a store creates no file", async (words) => {
    const place = words[1] === "migrate" ? [] : ["--store", "sqlite:missing.db"];
    const { code, stderr } = await ctl.run(...words, ...place);
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/^STORE_UNAVAILABLE: There is no store at missing\.db\. /),
    ]);
    for (const name of ["missing.db", "target.db"]) expect(existsSync(join(ctl.folder, name))).toBe(false);
  });
});

describe("overlayctl explain", () => {
  test("prints meaning and remedy of a code, in any case", async () => {
    const { code, stdout } = await ctl.run("explain", "device_foreign");
    expect([code, stdout]).toEqual([
      0,
      expect.stringMatching(/^code +DEVICE_FOREIGN\ncategory +hostFailed\nmeaning +A device .*\nremedy +Choose .*\n$/),
    ]);
  });

  test("a code that does not exist is refused with the nearest one", async () => {
    const { code, stderr } = await ctl.run("explain", "DEVICE_FOREIN");
    expect([code, stderr]).toEqual([
      1,
      "INPUT_INVALID: There is no error code 'DEVICE_FOREIN'. Did you mean DEVICE_FOREIGN? `overlayctl explain` lists all codes.\n",
    ]);
  });

  test("without a code it lists all of them", async () => {
    const listed = (await ctl.must("explain")).map(({ code }) => code);
    expect(listed).toEqual([...CODES]);
  });
});
