import { Lab } from "../../lab/lab";
import { createAccessToken } from "../../provider/access/access-tokens";
import { openIpam } from "../../provider/ipam";
import { type PostgresServer, startPostgres } from "../../test/contract/servers/postgres";
import { startLabService } from "../../test/e2e/lab-service";
import { type Stack, Workspace } from "../../test/e2e/stack";
import { measureTime, ratio, seconds, timeInProvider } from "../measure";
import { SETTINGS } from "../pool/adapter";
import { table } from "../table";
import { withResources } from "./resources";

/**
 * One program with many reservations, on PostgreSQL directly and on a service (`overlay:store` https://…, scope `deploy`) with the same
 * PostgreSQL behind it. Each has a database of its own. Checkpoints are skipped, as in `bench -- scale`.
 */
const MANY = 1000;
const FEW = 200;
const ENVIRONMENT = { PULUMI_EXPERIMENTAL: "true", PULUMI_SKIP_CHECKPOINTS: "true" };

const STEPS = ["preview", "up", "up again"] as const;
type Step = (typeof STEPS)[number];

const STORES = ["direct", "service"] as const;
type StoreName = (typeof STORES)[number];

/** Milliseconds: of the whole command, and with a call of the provider in progress. */
interface Timed {
  whole: number;
  inside: number;
}

type Measured = Record<Step, Record<StoreName, Timed>>;

export async function benchServiceStore(args: string[]): Promise<void> {
  const size = args.includes("--quick") ? FEW : MANY;
  const measured = await withResources(async (resources): Promise<Measured> => {
    const { lab } = await resources.add(startLab());
    const server = await resources.add(startPostgres("disk", { within: lab.controllerCommand([], "/") }));
    for (const name of STORES) await server.sql(`CREATE DATABASE ${name}`);
    const token = await createDeployToken(server);
    const service = await resources.add(startLabService(lab, server.url({ database: "service" }), RATE_LIMIT));
    const { workspace } = await resources.add(createWorkspace(lab));
    const stacks = {
      direct: await createStack(workspace, "direct", size, { OVERLAY_STORE: server.url({ database: "direct" }) }),
      service: await createStack(workspace, "service", size, {
        OVERLAY_STORE: service.store,
        OVERLAY_STORE_TOKEN: token,
      }),
    };
    return measure(stacks);
  });
  report(size, measured);
}

/** One up has more requests in a second than other callers. */
const RATE_LIMIT = ["--rate-limit", "1000000"];

async function startLab(): Promise<{ lab: Lab; stop(): Promise<void> }> {
  const lab = await Lab.up({ runners: 1 });
  return { lab, stop: () => lab.down() };
}

async function createWorkspace(lab: Lab): Promise<{ workspace: Workspace; stop(): void }> {
  const workspace = new Workspace(lab);
  return { workspace, stop: () => workspace.remove() };
}

/** From here the server is reached by its socket only. */
async function createDeployToken({ port, folder }: PostgresServer): Promise<string> {
  const pool = await openIpam(`postgres://overlay@localhost:${port}/service?host=${folder}`, SETTINGS);
  try {
    return (await createAccessToken({ pool, createdBy: "bench" }, { name: "ci", scopes: ["deploy"] })).text;
  } finally {
    await pool.end();
  }
}

async function createStack(
  workspace: Workspace,
  name: StoreName,
  size: number,
  env: Record<string, string>,
): Promise<Stack> {
  const stack = await workspace.stack(name, { env: { ...ENVIRONMENT, ...env, OVERLAY_SCOPE: "bench" } });
  stack.program(`
    const pool = new overlay.IPPool("pool", { ranges: ["10.0.0.0/16"] });
    for (let i = 0; i < ${size}; i++) new overlay.IPReservation("ip" + i, { pool });
  `);
  return stack;
}

/** Alternates step by step, so that other load on the machine affects both. */
async function measure(stacks: Record<StoreName, Stack>): Promise<Measured> {
  const measured = {} as Measured;
  for (const step of STEPS) {
    measured[step] = {} as Measured[Step];
    for (const name of STORES) {
      console.error(`${name}: ${step}.`);
      measured[step][name] = await runStep(stacks[name], step);
    }
  }
  return measured;
}

async function runStep(stack: Stack, step: Step): Promise<Timed> {
  const run = () => (step === "preview" ? stack.must("preview", "--stack", stack.name) : stack.mustUp());
  stack.trace();
  const whole = await measureTime(run);
  return { whole, inside: timeInProvider(stack.trace()) };
}

function report(size: number, measured: Measured): void {
  const rows = STEPS.flatMap((step) => {
    const { direct, service } = measured[step];
    const row = (what: string, key: keyof Timed) => [
      what,
      seconds(direct[key]),
      seconds(service[key]),
      ratio(service[key], direct[key]),
    ];
    return [row(step, "whole"), row("  inside the provider", "inside")];
  });
  const heading = [`${size.toLocaleString("en")} reservations, seconds`, "PostgreSQL", "service", ""];
  console.log(table([heading, ...rows], [1, 2, 3]));
  console.log(JSON.stringify({ size, measured }));
}
