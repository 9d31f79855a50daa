import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Ctl, deploy } from "../unit/cli/ctl";
import { type ServiceProcess, startService } from "./service-process";

/** Every command of docs/service.md, run as it is written there. */
const text = readFileSync(join(__dirname, "../../docs/service.md"), "utf8");
const commands = [...text.matchAll(/^curl .*$/gm)].map(([line]) => line);

const ctl = new Ctl();
let service: ServiceProcess;
let token: string;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1"]));
  token = String((await ctl.must("access", "create", "docs", "--scope", "admin"))[0]!.token);
  service = await startService(ctl);
});
afterAll(async () => {
  await service.stop();
  ctl.remove();
});

test("has an example for every operation", async () => {
  const { paths } = (await (await fetch(`${service.url}/openapi.json`)).json()) as { paths: Record<string, object> };
  const examples = commands.map((line) => {
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

test.each(commands)("%s", async (command) => {
  const headers = { authorization: `Bearer ${token}` };
  const answer = await fetch(`${service.url}/api/overlay/ip/reserve?runner=node1`, { method: "POST", headers });
  const { token: reservation } = (await answer.json()) as { token: string };
  const webhook = randomBytes(4).toString("hex");
  const url = "http://127.0.0.1:9/"; // nothing listens there
  await ctl.withPool((pool) => pool.webhooks.add({ id: webhook, url, secret: "whsec_x", createdAt: 0 }));
  const { stdout, stderr, status } = spawnSync(
    "/bin/sh",
    ["-c", command.replace("curl", "curl -sS --fail-with-body").replace("http://127.0.0.1:7447", service.url)],
    {
      encoding: "utf8",
      env: {
        PATH: process.env.PATH,
        API: `${service.url}/api/overlay`,
        AUTH: `Authorization: Bearer ${token}`,
        RESERVATION: reservation,
        WEBHOOK: webhook,
      },
    },
  );
  expect({ status, output: stdout + stderr }).toMatchObject({ status: 0 });
  if (command.includes("/events")) expect(stdout).toContain("event: claimed");
  else if (command.endsWith("/metrics")) expect(stdout).toContain("overlay_ipam_pool_total{");
  else expect(() => JSON.parse(stdout)).not.toThrow();
});
