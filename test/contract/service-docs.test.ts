import { execFile } from "node:child_process";
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Ctl, deploy, OVERLAYCTL } from "../unit/cli/ctl";
import { type ServiceProcess, startService } from "./service-process";

/** The commands of docs/service.md that need no root: all up to its section on errors. */
const page = readFileSync(join(__dirname, "../../docs/service.md"), "utf8");
const [commandPart] = page.split("\n## Errors\n");
const blocks = [...commandPart!.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block]) => block!);
const commands = blocks.flatMap((block) => block.trimEnd().split("\n"));

const ctl = new Ctl();
let service: ServiceProcess;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1"]));
  service = await startService(ctl);
  await pasteAll();
});
afterAll(async () => {
  await service?.stop();
  ctl.remove();
});

/** Runs the commands in their order in one shell, as a user pastes them. Nothing is set but the store. */
async function pasteAll(): Promise<void> {
  const overlayctl = join(ctl.folder, "overlayctl");
  writeFileSync(overlayctl, `#!/bin/sh\nexec "${process.execPath}" "${OVERLAYCTL}" "$@"\n`);
  chmodSync(overlayctl, 0o700);
  const script = [
    "set -o pipefail",
    'curl() { command curl -sS --fail-with-body "$@"; }', // a refused request fails
    ...commands.map((command, i) => `{ ${command}\n} >${i}.output 2>&1; echo $? >${i}.status`),
  ].join("\n");
  await promisify(execFile)("bash", ["-c", script.replaceAll("http://127.0.0.1:7447", service.url)], {
    cwd: ctl.folder,
    env: { PATH: `${ctl.folder}:${process.env.PATH}`, HOME: ctl.folder, OVERLAY_STORE: ctl.store },
    timeout: 50_000,
  });
}

test("has an example for every operation", async () => {
  const { paths } = (await (await fetch(`${service.url}/openapi.json`)).json()) as { paths: Record<string, object> };
  const examples = commands
    .filter((line) => line.includes("curl "))
    .map((line) => {
      const method = /-X (\w+)/.exec(line)?.[1] ?? "GET";
      const path = /(?:\$API|7447)([^"?\s]*)/.exec(line)![1]!;
      return `${method} ${line.includes("$API") ? "/api/overlay" : ""}${path}`;
    });
  for (const [path, methods] of Object.entries(paths))
    for (const method of Object.keys(methods)) {
      const pattern = new RegExp(`^${method.toUpperCase()} ${path.replace(/\{\w+\}/g, "[^/]+")}$`);
      expect(
        examples.filter((each) => pattern.test(each)),
        `${method} ${path}`,
      ).not.toEqual([]);
    }
});

/** What curl exits with when `--max-time` is over. */
const TIME_IS_OVER = 28;

test.each(commands.map((command, i) => [command, i] as const))("%s", (command, i) => {
  const read = (name: string) => readFileSync(join(ctl.folder, `${i}.${name}`), "utf8");
  const output = read("output");
  const expected = command.includes("--max-time") ? TIME_IS_OVER : 0;
  expect({ status: Number(read("status")), output }).toMatchObject({ status: expected });
  if (!command.startsWith("curl "))
    expect(output).toBe(""); // a variable or a function is set
  else if (command.includes("/events")) expect(output).toContain("event: claimed");
  else if (command.endsWith("/metrics")) expect(output).toContain("overlay_ipam_pool_total{");
  else expect(() => JSON.parse(output)).not.toThrow();
});
