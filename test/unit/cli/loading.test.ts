import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { openIpam } from "../../../provider/ipam";
import { OVERLAYCTL } from "./ctl";

/** Which modules a command loads: those of stores and SSH are large. */
const folder = mkdtempSync(join(tmpdir(), "overlay-loading-"));
afterAll(() => rmSync(folder, { recursive: true }));

const LARGE = ["pg", "@grpc/grpc-js", "@grpc/proto-loader", "@photostructure/sqlite", "ssh2", "zod", "ip-address"];
const SOURCES = ["/provider/ipam/", "/provider/host/", "/provider/reservations/", "/provider/resources/"];

/** The modules that a process has loaded when it ends. */
function loadedBy(...args: string[]): string[] {
  const hook = join(folder, "hook.cjs");
  const list = join(folder, "list.json");
  writeFileSync(
    hook,
    `process.on("exit", () => require("node:fs").writeFileSync(${JSON.stringify(list)}, JSON.stringify(Object.keys(require.cache))));`,
  );
  const env = { PATH: process.env.PATH, HOME: folder };
  const { status } = spawnSync(process.execPath, ["--require", hook, OVERLAYCTL, ...args], { env });
  expect(status).toBe(0);
  return JSON.parse(readFileSync(list, "utf8"));
}

const largeOf = (modules: string[]): string[] =>
  [...LARGE.map((name) => `/node_modules/${name}/`), ...SOURCES].filter((part) =>
    modules.some((path) => path.includes(part)),
  );

test("--version loads no store, no SSH and none of the provider's larger parts", () => {
  const modules = loadedBy("--version");
  expect(modules.some((path) => path.endsWith("/dist/cli/overlayctl.js"))).toBe(true);
  expect(largeOf(modules)).toEqual([]);
});

test("a command on a SQLite file loads no client of a server and no SSH", async () => {
  const store = `sqlite:${join(folder, "pool.db")}`;
  await (await openIpam(store, { offerTtl: 0, quarantine: 0 })).end();
  const found = largeOf(loadedBy("ip", "list", "--store", store));
  for (const name of ["pg", "@grpc/grpc-js", "ssh2"]) expect(found).not.toContain(`/node_modules/${name}/`);
  expect(found).toContain("/provider/reservations/");
});
