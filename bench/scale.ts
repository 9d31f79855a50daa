import { Lab } from "../lab/lab";
import { createAccessToken } from "../provider/access/access-tokens";
import { openIpam } from "../provider/ipam";
import { type PostgresServer, startPostgres } from "../test/contract/servers/postgres";
import { startLabService } from "../test/e2e/lab-service";
import { type Stack, Workspace } from "../test/e2e/stack";
import { measureTime, ratio, seconds, timeInProvider } from "./measure";
import { SETTINGS } from "./pool/adapter";
import { withResources } from "./service/resources";
import { table } from "./table";

/**
 * Programs with many reservations, on SQLite beside the same programs with resources that do nothing, and with `--service` on PostgreSQL, directly and
 * by a service. Checkpoints are skipped in all: Pulumi rewrites the state file with every resource, which would take most of the time.
 */
const SIZES = [100, 1000];
const FEW = [20, 200];
const env = { PULUMI_EXPERIMENTAL: "true", PULUMI_SKIP_CHECKPOINTS: "true", OVERLAY_SCOPE: "bench" };

const reservations = (count: number): string => `
  const pool = new overlay.IPPool("pool", { ranges: ["10.0.0.0/16"] });
  for (let i = 0; i < ${count}; i++) new overlay.IPReservation("ip" + i, { pool });
`;
const nothings = (count: number): string => `
  const provider = { create: async (inputs) => ({ id: "x", outs: inputs }) };
  const first = new pulumi.dynamic.Resource(provider, "first", { x: 1 });
  for (let i = 0; i < ${count}; i++) new pulumi.dynamic.Resource(provider, "n" + i, { x: first.id });
`;

const STEPS = ["preview", "up", "up again"] as const;
type Step = (typeof STEPS)[number];

/** Milliseconds: of the whole command, and with a call of the provider in progress. */
interface Timed {
  whole: number;
  inside: number;
}

/** By stack and step. The first stack is the one that the others are compared with. */
type Measured = Record<string, Record<Step, Timed>>;

export const benchScale = (args: string[]): Promise<void> =>
  withResources(async (resources) => {
    const sizes = args.includes("--quick") ? FEW : SIZES;
    const lab = await Lab.up({ runners: 1 });
    await resources.add(Promise.resolve({ stop: () => lab.down() }));
    const workspace = new Workspace(lab);
    await resources.add(Promise.resolve({ stop: () => workspace.remove() }));
    const stackOf = async (name: string, program: string, more: Record<string, string> = {}) => {
      const project = name.startsWith("empty") ? { project: "empty" } : {};
      const stack = await workspace.stack(name, { ...project, env: { ...env, ...more } });
      stack.program(program);
      return stack;
    };
    const measured = new Map<number, Measured>();
    if (args.includes("--service")) {
      const server = await resources.add(startPostgres("disk", { within: lab.controllerCommand([], "/") }));
      for (const name of ["direct", "service"]) await server.sql(`CREATE DATABASE ${name}`);
      const token = await createDeployToken(server);
      const service = await resources.add(startLabService(lab, server.url({ database: "service" }), RATE_LIMIT));
      const size = sizes[1]!;
      const stacks = {
        direct: await stackOf("direct", reservations(size), { OVERLAY_STORE: server.url({ database: "direct" }) }),
        service: await stackOf("service", reservations(size), {
          OVERLAY_STORE: service.store,
          OVERLAY_STORE_TOKEN: token,
        }),
      };
      measured.set(size, await measure(stacks));
    } else
      for (const size of sizes) {
        const stacks = {
          empty: await stackOf(`empty-${size}`, nothings(size)),
          ours: await stackOf(`ours-${size}`, reservations(size), { OVERLAY_STORE: `${workspace.store}-${size}` }),
        };
        measured.set(size, await measure(stacks));
      }
    report(measured);
  });

/** One up has more requests in a second than other callers. */
const RATE_LIMIT = ["--rate-limit", "1000000"];

/** From here the server is reached by its socket only. */
async function createDeployToken({ port, folder }: PostgresServer): Promise<string> {
  const pool = await openIpam(`postgres://overlay@localhost:${port}/service?host=${folder}`, SETTINGS);
  try {
    return (await createAccessToken({ pool, createdBy: "bench" }, { name: "ci", scopes: ["deploy"] })).text;
  } finally {
    await pool.end();
  }
}

/** Alternates step by step, so that other load on the machine affects all. */
async function measure(stacks: Record<string, Stack>): Promise<Measured> {
  const measured = Object.fromEntries(Object.keys(stacks).map((name) => [name, {}])) as Measured;
  for (const step of STEPS)
    for (const [name, stack] of Object.entries(stacks)) {
      const run = () => (step === "preview" ? stack.must("preview", "--stack", stack.name) : stack.mustUp());
      stack.trace();
      const whole = await measureTime(run);
      measured[name]![step] = { whole, inside: timeInProvider(stack.trace()) };
    }
  return measured;
}

function report(measured: Map<number, Measured>): void {
  for (const [size, all] of measured) {
    const [[base, first], ...others] = Object.entries(all) as [
      [string, Measured[string]],
      ...[string, Measured[string]][],
    ];
    const rows = others.flatMap(([, other]) =>
      STEPS.map((step) => [
        step,
        seconds(first[step].whole),
        seconds(other[step].whole),
        ratio(other[step].whole, first[step].whole),
        `${seconds(first[step].inside)}; ${seconds(other[step].inside)}`,
      ]),
    );
    const heading = [
      `${size} reservations, seconds`,
      base,
      ...others.map(([name]) => name),
      "ratio",
      "inside the provider",
    ];
    console.log(`${table([heading, ...rows], [1, 2, 3, 4])}\n`);
  }
  const ups = [...measured].map(([size, { ours }]) => [size, ours?.up.inside] as const);
  const [[few, small], [many, large] = [0, undefined]] = ups as [(typeof ups)[number], (typeof ups)[number]?];
  if (small !== undefined && large !== undefined)
    console.log(`Inside the provider, an up with ${many / few} times as many takes ${ratio(large, small)} the time.`);
  console.log(JSON.stringify(Object.fromEntries(measured)));
}
