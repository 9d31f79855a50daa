import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
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

/** Requests of each kind for each operation. */
const EXAMPLES = process.env.SCHEMATHESIS_EXAMPLES ?? "100";

/** The first ones are always the same; the last one is new each time. */
const SEEDS = process.env.SCHEMATHESIS_SEED?.split(",") ?? ["1", "2", String(Date.now() % 1_000_000)];

beforeAll(async () => {
  program = pythonTool("schemathesis", "st");
  await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
  const [made] = await ctl.must("access", "create", "tester", "--scope", "admin");
  token = String(made!.token);
  service = await startService(ctl, ["--rate-limit", "100000"]);
});
afterAll(async () => {
  await service?.stop();
  ctl.remove();
});

const TIMEOUT = { timeout: 30 * 60_000 };

test.each(SEEDS)("no failure of the server, and no answer that is not documented: seed %s", TIMEOUT, async (seed) => {
  const args = [
    ...["--config-file", join(__dirname, "schemathesis.toml"), "run", `${service.url}/openapi.json`],
    ...["--header", `Authorization: Bearer ${token}`],
    ...["--exclude-path", "/api/overlay/events"], // an answer without an end
    ...["--checks", "all", "--max-examples", EXAMPLES, "--seed", seed],
    ...["--request-timeout", "60", "--suppress-health-check", "all", "--continue-on-failure"],
  ];
  const hooks = { SCHEMATHESIS_HOOKS: join(__dirname, "schemathesis_checks.py"), PYTHONDONTWRITEBYTECODE: "1" };
  const env = { ...process.env, ...hooks };
  const child = spawn(program, args, { cwd: ctl.folder, env, stdio: ["ignore", "pipe", "pipe"] });
  const [report, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  console.log(code === 0 ? report.slice(-2500) : `${report}${errors}`);
  expect(code).toBe(0);
  expect((await fetch(`${service.url}/readyz`)).status).toBe(200);
  expect(await ctl.run("store", "check")).toMatchObject({ code: 0 });
});
