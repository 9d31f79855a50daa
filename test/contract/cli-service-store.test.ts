import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createAccessToken } from "../../provider/access/access-tokens";
import { openIpam, type Store } from "../../provider/ipam";
import { historyOf } from "../../provider/ipam/interface";
import { Ctl, deploy } from "../unit/cli/ctl";
import { type Service, serveInProcess } from "./servers/service";

/** The command line with a service as its store. */
describe("overlayctl --store https", { timeout: 120_000 }, () => {
  const ctl = new Ctl();
  let pool: Store;
  let service: Service;
  let [store, token, tokenFile] = ["", "", join(ctl.folder, "token")];

  beforeAll(async () => {
    pool = await openIpam(ctl.store, { offerTtl: 3600, quarantine: 0 });
    await deploy(pool, ["node1"]);
    service = await serveInProcess(pool);
    store = `http://127.0.0.1:${service.port}`;
    ({ text: token } = await createAccessToken({ pool, createdBy: "test" }, { name: "ops", scopes: ["deploy"] }));
    writeFileSync(tokenFile, `${token}\n`);
  });
  afterAll(async () => {
    await service.app.close();
    await pool.end();
    ctl.remove();
  });

  const run = (args: string[], env: Record<string, string> = { OVERLAY_STORE_TOKEN_FILE: tokenFile }) => {
    const { child, ended } = ctl.start([...args, "--json"], { OVERLAY_STORE: store, ...env });
    child.stdin.end();
    return ended;
  };

  test("pools are listed, and an address is reserved, used and released, with a token that the service has signed", async () => {
    expect((await run(["pool", "list"])).json.map((row) => row.pool)).toContain("runner/training/node1");
    const reserved = await run(["ip", "reserve", "--runner", "node1"]);
    const { ip, token: signed } = reserved.json[0]!;
    expect((await run(["ip", "validate", String(signed)])).json).toMatchObject([{ ip }]);
    expect((await run(["ip", "use", "--token", String(signed), "--by", "c1"])).code).toBe(0);
    expect((await run(["ip", "release", "--by", "c1"])).json).toMatchObject([{ ip }]);
    const history = await historyOf(pool, "runner/training/node1");
    expect(history.every(({ by }) => by?.startsWith("ops ("))).toBe(true);
  });

  test.each([
    [["store", "check"]],
    [["store", "dump"]],
    [["store", "keys", "export", "-"]],
    [["recover", "--seen-version", "3", "--yes"]],
    [["access", "list"]],
    [["serve", "--listen", "127.0.0.1:0"]],
  ])("%j is done only where the store is", async (args) => {
    const { code, stderr } = await run(args);
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/^ACCESS_DENIED: .* Run the command on a machine of the service/),
    ]);
    expect(stderr).not.toContain(token);
  });

  test.each<[string, Record<string, string>, RegExp]>([
    ["no token", {}, /^SETTING_INVALID: The store is a service, and there is no access token/],
    ["another token", { OVERLAY_STORE_TOKEN: `ovl_00000000_${"A".repeat(43)}` }, /^ACCESS_TOKEN_INVALID: /],
    [
      "keys for tokens",
      { OVERLAY_STORE_TOKEN: "x", OVERLAY_TOKEN_KEYS: "a key of 16 characters" },
      /^SETTING_INVALID: tokenKeys is set/,
    ],
  ])("with %s it says what to do", async (_, env, expected) => {
    const { code, stderr } = await run(["pool", "list"], env);
    expect([code, stderr]).toEqual([1, expect.stringMatching(expected)]);
  });
});
