import { OverlayError } from "../errors";
import type { Connection } from "../host/connection";
import { parseStamp } from "../lifecycle/lease";
import type { Enrolment, Fact, Lease, Pool } from "../pool";
import { listOf } from "../pool/wording";
import { NETWORKS } from "../pool-names";
import { command, type Session, wholeNumber, withPool } from "./command";
import { containersIn, withContainerUsers } from "./container-users";
import { type Exported, factsOf, hidesMachines, readExport } from "./exports";
import { connections, type Login, Machines, withLogin } from "./hosts/machines";
import { openersFirst } from "./nesting";
import { joined } from "./scan/joining";
import { type Recorded, recordedOn } from "./scan/recorded";
import { type Read, readMachine } from "./scan/surveyed";

interface Options extends Login {
  stackExport?: string[];
  host?: Connection[];
  yes?: boolean;
  seenVersion?: number;
}

/** Rebuilds what a lost store held from what Pulumi's states and the machines hold. A second run finds nothing to do. */
export const recoverCommand = () =>
  withLogin(
    command(
      "recover",
      "Rebuild a lost pool from stack exports and machines: shows what it would write; --yes writes it.",
    ),
  )
    .option("--stack-export <file...>", "what `pulumi stack export` printed, of every stack that used the store")
    .option("--host <host>", "a hub or runner with our records, as [user@]host[:port]; may be repeated", connections)
    .option(
      "--seen-version <number>",
      "a version of the store that a stack without an export has seen, as STORE_LOST names it; what that stack holds must be recovered",
      wholeNumber,
    )
    .option("--yes", "write it")
    .action(
      withPool<Options>(async (session, options) => {
        const { stackExport = [], yes = false } = options;
        const exports = await Promise.all(stackExport.map(readExport));
        const exported = exports.flatMap(({ resources }) => resources);
        const reads = await readMachines(session, options);
        const recorded = recordedOn(reads);
        if (exports.length === 0 && !options.host && options.seenVersion === undefined) throw nothingGiven();
        const found = await joined(session.pool, exported, recorded.resources);
        await enter(session, found, reads, yes);
        if (yes) await adoptIdentity(session.pool, exported, recorded, options.seenVersion);
        if (exported.some(hidesMachines)) session.out.note(HOSTS_UNKNOWN);
        if (recorded.unclear.length > 0)
          session.out.note(`Left out, since machines do not tell all of it: ${recorded.unclear.join(", ")}.`);
      }),
    );

const nothingGiven = (): OverlayError =>
  new OverlayError("INPUT_INVALID", "There is nothing to rebuild it from.", "Give --stack-export, --host, or both.");

async function readMachines({ settings }: Session, options: Options): Promise<Read[]> {
  const machines = new Machines(settings, options);
  const reading = (options.host ?? []).map((each) => () => readMachine(machines, each));
  return machines.use(() => Promise.all(reading.map((read) => read())));
}

/** From then on the stacks accept this store as theirs, and records on machines are its own. */
async function adoptIdentity(
  pool: Pool,
  exported: Exported[],
  { stores }: Recorded,
  seenVersion: number | undefined,
): Promise<void> {
  const stamps = exported.flatMap(({ props }) => parseStamp(props) ?? []);
  const ids = new Set(stamps.map(({ id }) => id));
  // Records of several stores on the machines: theirs may be the neighbours'.
  if (stores.size === 1) for (const id of stores) ids.add(id);
  const version = Math.max(seenVersion ?? 0, ...stamps.map(({ version }) => version));
  await pool.adoptIdentity([...ids], version, { complete: seenVersion !== undefined });
}

async function enter({ pool, out, settings }: Session, found: Exported[], reads: Read[], yes: boolean): Promise<void> {
  const all = factsOf(found, settings.tenantDefaults);
  const facts = openersFirst(await withContainerUsers(pool, all, found, containersIn(reads)));
  const plan = await pool.enrol(facts, { dryRun: !yes });
  out.list(await rows(pool, plan, found), ["action", "type", "value", "pool", "opens", "owner"]);
  if (plan.conflicts.length > 0) throw contradicting(plan, found);
  out.note(summary(plan, yes));
}

const HOSTS_UNKNOWN =
  "Connections are encrypted in these exports, so the names of machines are not written; `pulumi stack export --show-secrets` has them.";

const summary = ({ added, known }: Enrolment, yes: boolean): string =>
  added.length === 0
    ? `Nothing to do: all ${known.length} leases are in the store.`
    : yes
      ? `Written: ${added.length}; there already: ${known.length}.`
      : `Would be written: ${added.length}; there already: ${known.length}. Nothing is written without --yes.`;

async function rows(pool: Pool, { added, known, conflicts }: Enrolment, found: Exported[]) {
  const row = async (
    action: string,
    lease: Pick<Lease, "pool" | "type" | "owner" | "extents" | "leaseId"> & { opens?: string },
  ) => ({
    action,
    type: lease.type,
    value: listOf(await kindOf(pool, lease.pool), lease.extents),
    pool: lease.pool,
    opens: lease.opens,
    owner: lease.owner,
    leaseId: lease.leaseId,
  });
  const refused = conflicts.map(async ({ fact, error }) => ({
    ...(await row("conflict", { ...withoutOpens(fact), extents: fact.want, leaseId: fact.identity?.leaseId ?? "" })),
    source: sourceOf(fact, found),
    error: error.code,
    message: error.message,
  }));
  const fine = [...added.map((lease) => row("add", lease)), ...known.map((lease) => row("known", lease))];
  return Promise.all([...fine, ...refused]);
}

const withoutOpens = ({ opens, ...fact }: Fact) => ({ ...fact, ...(opens && { opens: opens.name }) });

/** In a dry run the pools of networks are not open yet. */
const kindOf = async (pool: Pool, name: string) =>
  (await pool.spec(name))?.kind ?? (name.startsWith(NETWORKS) ? "id" : "address");

const sourceOf = ({ identity }: Fact, found: Exported[]): string | undefined =>
  found.find(({ props }) => props.leaseId === identity?.leaseId)?.source;

function contradicting({ conflicts }: Enrolment, found: Exported[]): OverlayError {
  const lines = conflicts.map(({ fact, error }) => `\n  ${fact.owner} (${sourceOf(fact, found)}): ${error.what}`);
  const what = `${conflicts.length} of ${found.length} resources contradict others or the store; nothing was written.${lines.join("")}\n `;
  return new OverlayError("STORE_CONFLICT", what, "Leave out exports that are not of today, and settle who is right.");
}
