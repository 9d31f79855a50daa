import { OverlayError } from "../errors";
import type { Enrolment, Fact, Lease, Pool } from "../pool";
import { listOf } from "../pool/wording";
import { command, withPool } from "./command";
import { type Exported, factOf, readExport } from "./exports";

interface Options {
  stackExport: string[];
  yes?: boolean;
}

/** Rebuilds what a lost store held from what Pulumi's states hold. Run twice, it does nothing the second time. */
export const recoverCommand = () =>
  command("recover", "Rebuild a lost pool from stack exports: shows what it would write; --yes writes it.")
    .requiredOption(
      "--stack-export <file...>",
      "what `pulumi stack export` printed, of every stack that used the store",
    )
    .option("--yes", "write it")
    .action(
      withPool<Options>(async ({ pool, out }, { stackExport, yes = false }) => {
        const exports = await Promise.all(stackExport.map(readExport));
        const found = exports.flatMap(({ resources }) => resources);
        const facts = found.map(factOf).sort((a, b) => depth(a) - depth(b));
        const plan = await pool.enrol(facts, { dryRun: !yes });
        out.list(await rows(pool, plan, found), ["action", "type", "value", "pool", "opens", "owner"]);
        if (plan.conflicts.length > 0) throw contradicting(plan, found);
        if (found.some(({ props }) => !props.hubConnection)) out.note(HOSTS_UNKNOWN);
        out.note(summary(plan, yes));
      }),
    );

/** What opens pools comes before what lies in them. */
const depth = ({ pool }: Fact): number => ["space", "network", "runner"].indexOf(pool.split("/")[0]!);

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
    ...(await row("conflict", { ...withoutOpens(fact), extents: fact.want, leaseId: fact.identity!.leaseId })),
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
  (await pool.spec(name))?.kind ?? (name.startsWith("network/") ? "id" : "address");

const sourceOf = ({ identity }: Fact, found: Exported[]): string | undefined =>
  found.find(({ props }) => props.leaseId === identity?.leaseId)?.source;

function contradicting({ conflicts }: Enrolment, found: Exported[]): OverlayError {
  const lines = conflicts.map(({ fact, error }) => `\n  ${fact.owner} (${sourceOf(fact, found)}): ${error.what}`);
  const what = `${conflicts.length} of ${found.length} resources contradict others or the store; nothing was written.${lines.join("")}\n `;
  return new OverlayError("STORE_CONFLICT", what, "Leave out exports that are not of today, and settle who is right.");
}
