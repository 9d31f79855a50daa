import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { createPoolOn, ranges } from "../contract/fixture";
import { freePort } from "../contract/servers/process";
import { type ServiceProcess, startService, waitFor } from "../contract/service-process";
import { Ctl } from "../unit/cli/ctl";

/** A real Prometheus that scrapes a real service with an access token, and evaluates our rules at short intervals. */
const DEPLOY = join(__dirname, "../../deploy/prometheus");

const ctl = new Ctl();
const folder = mkdtempSync(join(tmpdir(), "overlay-prometheus-"));
let service: ServiceProcess;
let token: string;
let prometheus: { url: string; stop(): Promise<void> };

beforeAll(async () => {
  await ctl.withPool((pool) => createPoolOn(pool, { name: "pool/web", ranges: ranges("10.0.0.0/28") }));
  const [made] = await ctl.must("access", "create", "prometheus", "--scope", "read", "--scope", "reserve");
  token = String(made!.token);
  service = await startService(ctl);
  prometheus = await startPrometheus(new URL(service.url).host);
});
afterAll(async () => {
  await prometheus?.stop();
  await service?.stop();
  rmSync(folder, { recursive: true });
  ctl.remove();
});

test("promtool accepts the rules, and their tests pass", () => {
  const promtool = (...args: string[]) => execFileSync("promtool", args, { cwd: DEPLOY, encoding: "utf8" });
  expect(promtool("check", "rules", "overlay.rules.yml")).toContain("SUCCESS: 10 rules found");
  expect(promtool("test", "rules", "overlay.rules.test.yml")).toContain("SUCCESS");
});

test("Prometheus reads the metrics of a pool", async () => {
  await reserve(5);
  const value = await waitFor(async () => {
    const [sample] = await query('overlay_ipam_pool_allocated{pool="pool/web"}');
    return sample?.value[1] === "5" ? sample : undefined;
  });
  expect(value.metric).toEqual({
    __name__: "overlay_ipam_pool_allocated",
    instance: new URL(service.url).host,
    job: "overlay",
    pool: "pool/web", // of no tenant and no type: Prometheus drops empty labels
  });
  await waitFor(async () => ((await alerts()).length === 0 ? true : undefined)); // before the first scrape, OverlayNotScraped fires
});

test("the alert at 80 % fires when a pool is that full, and ends when it no longer is", async () => {
  const given = await reserve(8); // 13 of 16
  expect(await waitFor(() => firing("OverlayPoolNearlyFull"))).toMatchObject({
    labels: { pool: "pool/web", severity: "warning" },
    annotations: { summary: "Pool pool/web is 81.25% full." },
  });
  for (const each of given) await post(`release?token=${each}`);
  await waitFor(async () => ((await firing("OverlayPoolNearlyFull")) ? undefined : true));
});

test("an instance that is down is noticed", async () => {
  await service.stop();
  const fired = await waitFor(() => firing("OverlayInstanceDown"));
  expect(fired.labels).toMatchObject({ instance: new URL(service.url).host });
});

const reserve = async (count: number): Promise<string[]> => {
  const tokens: string[] = [];
  for (let i = 0; i < count; i++) tokens.push((await post("reserve?pool=web")).token!);
  return tokens;
};

async function post(path: string): Promise<{ token?: string }> {
  const headers = { authorization: `Bearer ${token}` };
  const answer = await fetch(`${service.url}/api/overlay/ip/${path}`, { method: "POST", headers });
  expect(answer.status).toBe(200);
  return (await answer.json()) as { token?: string };
}

const queryAnswer = z.object({
  data: z.object({
    result: z.array(z.object({ metric: z.record(z.string(), z.string()), value: z.tuple([z.number(), z.string()]) })),
  }),
});
const alertsAnswer = z.object({
  data: z.object({
    alerts: z.array(
      z.object({
        labels: z.record(z.string(), z.string()),
        annotations: z.record(z.string(), z.string()),
        state: z.string(),
      }),
    ),
  }),
});

const ask = async (path: string): Promise<unknown> => (await fetch(`${prometheus.url}/api/v1/${path}`)).json();
const query = async (text: string) =>
  queryAnswer.parse(await ask(`query?query=${encodeURIComponent(text)}`)).data.result;
const alerts = async () => alertsAnswer.parse(await ask("alerts")).data.alerts;
/** Others may fire, too: a pool that is filled within seconds is expected to be exhausted within a day. */
const firing = async (name: string) =>
  (await alerts()).find(({ labels, state }) => labels.alertname === name && state === "firing");

/** The rules as they are shipped, but for how long a condition must hold. */
async function startPrometheus(target: string): Promise<{ url: string; stop(): Promise<void> }> {
  const rules = readFileSync(join(DEPLOY, "overlay.rules.yml"), "utf8").replace(/^( +for:) .*$/gm, "$1 1s");
  writeFileSync(join(folder, "overlay.rules.yml"), rules);
  writeFileSync(join(folder, "token"), token, { mode: 0o600 });
  const config = {
    global: { scrape_interval: "1s", scrape_timeout: "1s", evaluation_interval: "1s" },
    rule_files: ["overlay.rules.yml"],
    scrape_configs: [
      {
        job_name: "overlay",
        authorization: { credentials_file: "token" },
        static_configs: [{ targets: [target] }],
      },
    ],
  };
  writeFileSync(join(folder, "prometheus.yml"), JSON.stringify(config)); // JSON is YAML
  const url = `http://127.0.0.1:${await freePort()}`;
  const args = [
    `--config.file=${folder}/prometheus.yml`,
    `--storage.tsdb.path=${folder}/data`,
    `--web.listen-address=${new URL(url).host}`,
  ];
  const child = spawn("prometheus", args, { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  child.stderr.on("data", (data) => (log += data));
  const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
  const isReady = () =>
    fetch(`${url}/-/ready`).then(
      ({ ok }) => ok || undefined,
      () => undefined,
    );
  await Promise.race([
    waitFor(isReady),
    ended.then(() => {
      throw new Error(`prometheus has ended:\n${log}`);
    }),
  ]);
  const stop = () => {
    child.kill("SIGTERM");
    return ended;
  };
  return { url, stop };
}
