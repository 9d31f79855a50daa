import type { Command } from "commander";
import { isOverlayError } from "../../errors";
import { type Connection, machineKey } from "../../host/connection";
import { createFleet } from "../../host/fleet";
import { type DryRun, dryRun } from "../../host/reconcile/dry-run";
import { Reconciler } from "../../host/reconcile/queue";
import type { ApplyRequest } from "../../host/reconcile/types";
import { desiredStates } from "../../lifecycle/hosts";
import { buildRequest, readStoreId } from "../../lifecycle/lease";
import type { Values } from "../../lifecycle/values";
import { itemKey } from "../../network/model/items";
import type { Pool } from "../../pool";
import { resourceOf } from "../../resources";
import { command, type Session, withPool } from "../command";
import { connectionOf, type Login, Machines, namedConnection, withLogin } from "../hosts/machines";
import { connected, type Given } from "./connected";
import { type Planned, readPlanned } from "./planned";

interface Options extends Login, Given {}

export const planCommand = (): Command =>
  withLogin(command("plan", "Print the exact commands that an up would run on each machine. Changes nothing."))
    .argument("[file]", "what `pulumi preview --json` or `pulumi stack export --show-secrets` printed", "-")
    .option("--hub <host>", "where the hub is, if the preview moves it", connectionOf)
    .option("--runner <name=host>", "where a runner is, if the preview moves it; may be repeated", namedConnection)
    .action(
      withPool<Options>(async (session, options, file) => {
        const planned = await readPlanned(file!);
        const machines = new Machines(session.settings, options);
        await machines.use(async () => {
          const { works, unknown } = await worksFor(session.pool, machines, planned, options);
          for (const [machine, { connection, all }] of [...works].sort(([a], [b]) => byNumber(a, b)))
            report(session, machine, await dryRun(await machines.connect(connection), all));
          if (works.size + unknown.length === 0) session.out.note("Nothing would be done on any machine.");
          if (unknown.length > 0)
            session.out.note(`Their machines are not known before up: ${unknown.join(", ")} (see --hub and --runner).`);
        });
      }),
    );

/** Resources come in any order; the same plan is to be the same text. */
const byNumber = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

type Works = Map<string, { connection: Connection; all: ApplyRequest[] }>;

async function worksFor(pool: Pool, machines: Machines, planned: Planned[], given: Given) {
  const deps = { fleet: createFleet(machines, new Reconciler(), {}) };
  const store = await readStoreId(pool);
  const [works, unknown]: [Works, string[]] = [new Map(), []];
  for (const each of planned) {
    const props = await connected(pool, each, given);
    if (!props) unknown.push(each.name);
    for (const { target, desired } of props ? await statesOf(deps, each, props, store) : []) {
      const at = works.get(machineKey(target.connection)) ?? { connection: target.connection, all: [] };
      at.all.push({ ...desired, fence: async () => {}, isLeaseGone: isGone(pool, each) });
      works.set(machineKey(target.connection), at);
    }
  }
  return { works, unknown };
}

/** A resource that is not there yet has no uid: its record is named in the plan by what it is called. */
function statesOf(
  deps: Parameters<typeof desiredStates>[1],
  { type, name, isDeleted }: Planned,
  props: Values,
  store: string,
) {
  const { uid = `uid-of-${name}`, leaseId = "" } = props as { uid?: string; leaseId?: string };
  const owned = { pool: "", uid, leaseId, owner: String(props.owner), store };
  return desiredStates(resourceOf(type), deps, props, owned, isDeleted);
}

const isGone =
  (pool: Pool, { type, props }: Planned) =>
  async (uid: string): Promise<boolean> =>
    (await pool.find(buildRequest(resourceOf(type), props).pool, { uid })) === undefined;

function report({ out }: Session, machine: string, { steps, script, records, refused }: DryRun): void {
  const reasons = refused.map((error) => {
    if (!isOverlayError(error)) throw error;
    return error.message;
  });
  if (reasons.length > 0) process.exitCode = 1;
  const changes = steps.map(({ verb, item }) => `${verb} ${itemKey(item)}`);
  out.emit({ machine, changes, script, records, refused: reasons });
  out.say(`# ${machine}: ${steps.length} change${steps.length === 1 ? "" : "s"}`);
  for (const { network, uid, items } of records)
    out.say(`# writes /var/lib/overlay/${network}/${uid}.json (${items.length} items)`);
  for (const reason of reasons) out.say(`# refused: ${reason}`);
  if (script !== "") out.say(script);
  out.say("");
}
