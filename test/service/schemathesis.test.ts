import { spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type ServiceProcess, startService } from "../contract/service-process";
import { Ctl, deploy } from "../unit/cli/ctl";
import { pythonTool } from "./python-tools";

/** schemathesis makes requests from /openapi.json, valid and invalid ones, and compares the answers with it. */
const ctl = new Ctl();
let service: ServiceProcess;
let token: string;
let program: string;

beforeAll(async () => {
  program = pythonTool("schemathesis", "st");
  await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
  const [made] = await ctl.must("access", "create", "tester", "--scope", "admin");
  token = String(made!.token);
  service = await startService(ctl, ["--rate-limit", "100000"]);
});
afterAll(async () => {
  await service.stop();
  ctl.remove();
});

test("no failure of the server, and no answer that is not documented", async () => {
  const args = [
    "run",
    `${service.url}/openapi.json`,
    ...["--header", `Authorization: Bearer ${token}`],
    ...["--exclude-path", "/api/overlay/events"], // an answer without an end
    ...["--checks", "all"],
    ...["--max-examples", process.env.SCHEMATHESIS_EXAMPLES ?? "50"],
    ...["--seed", process.env.SCHEMATHESIS_SEED ?? String(Date.now() % 1_000_000)],
    ...["--request-timeout", "60", "--suppress-health-check", "all", "--continue-on-failure"],
  ];
  const child = spawn(program, args, { cwd: ctl.folder, stdio: ["ignore", "pipe", "pipe"] });
  const [report, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  console.log(code === 0 ? report.slice(-2500) : `${report}${errors}`);
  expect(code).toBe(0);
  expect((await fetch(`${service.url}/readyz`)).status).toBe(200);
  expect(await ctl.run("store", "check")).toMatchObject({ code: 0 });
});
