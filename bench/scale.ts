import { Lab } from "../lab/lab";
import { type Stack, Workspace } from "../test/e2e/stack";
import { measureTime, ratio, seconds, timeInProvider } from "./measure";
import { table } from "./table";

/**
 * Programs with many reservations, compared with the same programs with resources that do nothing. Checkpoints are skipped in
 * both: Pulumi rewrites the state file with every resource, which would take most of the time.
 */
const SIZES = [100, 1000];
const FEW = [20, 200];
const env = { PULUMI_EXPERIMENTAL: "true", PULUMI_SKIP_CHECKPOINTS: "true" };

const ours = (count: number): string => `
  const pool = new overlay.IPPool("pool", { ranges: ["10.0.0.0/16"] });
  for (let i = 0; i < ${count}; i++) new overlay.IPReservation("ip" + i, { pool });
`;
const empty = (count: number): string => `
  const provider = { create: async (inputs) => ({ id: "x", outs: inputs }) };
  const first = new pulumi.dynamic.Resource(provider, "first", { x: 1 });
  for (let i = 0; i < ${count}; i++) new pulumi.dynamic.Resource(provider, "n" + i, { x: first.id });
`;

interface Times {
  preview: number;
  up: number;
  unchanged: number;
}
type Measured = Record<"ours" | "empty" | "inside", Times>;

export async function benchScale(args: string[]): Promise<void> {
  const lab = await Lab.up({ runners: 1 });
  const workspace = new Workspace(lab);
  const measured = new Map<number, Measured>();
  try {
    for (const size of args.includes("--quick") ? FEW : SIZES) measured.set(size, await measure(workspace, size));
    report(measured);
  } finally {
    await lab.down();
    workspace.remove();
  }
}

/** Alternates step by step, so that other load on the machine affects both. */
async function measure(workspace: Workspace, size: number): Promise<Measured> {
  const theirs = await workspace.stack(`empty-${size}`, { project: "empty", env });
  const mine = await workspace.stack(`ours-${size}`, {
    env: { ...env, OVERLAY_STORE: `${workspace.store}-${size}` },
  });
  theirs.program(empty(size));
  mine.program(ours(size));
  const measured = { empty: {}, ours: {}, inside: {} } as Measured;
  for (const what of ["preview", "up", "unchanged"] as const) {
    const run = (stack: Stack) => (what === "preview" ? stack.must("preview", "--stack", stack.name) : stack.mustUp());
    measured.empty[what] = await measureTime(() => run(theirs));
    measured.ours[what] = await measureTime(() => run(mine));
    measured.inside[what] = timeInProvider(mine.trace());
  }
  return measured;
}

function report(measured: Map<number, Measured>): void {
  const rows = [...measured].flatMap(([size, { ours, empty, inside }]) =>
    (["preview", "up", "unchanged"] as const).map((what) => [
      `${size} reservations, ${what === "unchanged" ? "up again" : what}`,
      seconds(ours[what]),
      seconds(empty[what]),
      ratio(ours[what], empty[what]),
      seconds(inside[what]),
    ]),
  );
  console.log(table([["", "seconds", "empty resources", "against", "inside the provider"], ...rows], [1, 2, 3, 4]));
  const [[few, small], [many, large]] = [...measured] as [[number, Measured], [number, Measured]];
  const growth = ratio(large.inside.up, small.inside.up);
  console.log(`Inside the provider, an up with ${many / few} times as many takes ${growth} the time.`);
  console.log(JSON.stringify(Object.fromEntries(measured)));
}
