import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { Option } from "commander";
import { isOverlayError, OverlayError } from "../errors";
import { forgottenHosts } from "../lifecycle/delete";
import { isForgotten, isStackOwner } from "../owner";
import type { Lease, Pool } from "../pool";
import { formatExtents } from "../pool/errors";
import { isCommitted } from "../pool/types";
import { command, type Session, wholeNumber, withPool } from "./command";
import { withoutContainer } from "./containers";
import { type Login, withLogin } from "./hosts";
import type { Output } from "./output";
import { type Export, openersFirst, parseExport, readExport } from "./stack-export";

interface Options extends Login {
  containers?: string;
  stackExport?: string[];
  gone?: string[];
  /** true: all of them. */
  forgotten?: true | string[];
  olderThan?: number;
  yes?: boolean;
}

/** Hosts are not touched: what is on them stays until it is cleaned up. */
export const gcCommand = () =>
  withLogin(
    command(
      "gc",
      "Find leases that their stack, or the container that used them, no longer has, or of forgotten hosts; --yes releases them.",
    ),
  )
    .option(
      "--stack-export <file...>",
      "what `pulumi stack export` printed; default: ask pulumi for every stack in the store",
    )
    .option("--gone <stack...>", "this stack was removed: SCOPE/PROJECT/STACK")
    .option("--containers <network>", "ask the Docker on each of its runners instead, and no stack")
    .addOption(
      new Option(
        "--forgotten [host...]",
        "what hosts held that did not answer when they were deleted; only what no other host than these may use",
      ).conflicts(["containers", "stackExport", "gone"]),
    )
    .option(
      "--older-than <seconds>",
      "leave alone what was touched since: an up may be under way; default: 3600, with --forgotten 0",
      wholeNumber,
    )
    .option("--yes", "release them")
    .action(
      withPool<Options>(async (session, options) => {
        const missing = await findMissing(session, options);
        const { olderThan = options.forgotten ? 0 : 3600 } = options;
        const isOld = ({ updatedAt, lastSeen }: Lease) =>
          olderThan === 0 || Math.max(updatedAt, lastSeen) <= Date.now() - olderThan * 1000;
        const orphans = missing.filter(isOld);
        session.out.list(await rows(session.pool, orphans), ["action", "value", "pool", "type", "hosts", "owner"]);
        if (missing.length > orphans.length)
          session.out.note(`Left alone, since they are new: ${missing.length - orphans.length} (see --older-than).`);
        if (!options.yes) session.out.note(`Would be released: ${orphans.length}. Nothing is released without --yes.`);
        else await releaseAll(session, orphans);
      }),
    );

async function findMissing(session: Session, options: Options): Promise<Lease[]> {
  if (options.forgotten) return ofForgottenHosts(session.out, await forgotten(session.pool), options.forgotten);
  if (options.containers !== undefined) return withoutContainer(session, options.containers, options);
  return withoutStack(session, options);
}

async function withoutStack(session: Session, options: Options): Promise<Lease[]> {
  const leases = (await leasesOfStacks(session.pool)).filter(({ owner }) => !isForgotten(owner));
  const known = await knownStacks(session, options, leases);
  const unsure = new Set(leases.map((lease) => stackOf(lease)!).filter((stack) => !known.has(stack)));
  if (unsure.size > 0) session.out.note(`Not looked at, for want of an export: ${[...unsure].map(nameOf).join(", ")}.`);
  return leases.filter((lease) => known.get(stackOf(lease)!)?.has(lease.uid) === false);
}

/** An owner is `SCOPE/urn:pulumi:STACK::PROJECT::TYPE::NAME`; its stack is all before the type. */
const stackOf = ({ owner }: Lease): string | undefined =>
  isStackOwner(owner) ? /^(.*\/urn:pulumi:[^:]+::[^:]+)::/.exec(owner)?.[1] : undefined;

const PARTS = /^(.*)\/urn:pulumi:([^:]+)::([^:]+)$/;
const nameOf = (stack: string): string => stack.replace(PARTS, "$1/$3/$2");

/** Innermost pools first: a lease that opens a pool can go only when that pool is empty. */
async function leasesOfStacks(pool: Pool): Promise<Lease[]> {
  const leases: Lease[] = [];
  for (const { name } of await pool.pools()) leases.push(...(await pool.leases(name)));
  return openersFirst(leases.filter((lease) => isCommitted(lease) && stackOf(lease))).reverse();
}

const forgotten = async (pool: Pool): Promise<Lease[]> =>
  (await leasesOfStacks(pool)).filter(({ owner }) => isForgotten(owner));

/** Which uids each stack has; a stack of which nothing is known is not in it. */
async function knownStacks(session: Session, { stackExport, gone = [] }: Options, leases: Lease[]) {
  const stacks = [...new Set(leases.map((lease) => stackOf(lease)!))];
  const known = new Map<string, Set<string>>();
  const exports = stackExport
    ? (await Promise.all(stackExport.map(readExport))).flatMap((each) => of(each, stacks))
    : await askPulumi(
        session,
        stacks.filter((stack) => !gone.includes(nameOf(stack))),
      );
  for (const [stack, { resources }] of exports) {
    known.set(stack, new Set([...(known.get(stack) ?? []), ...resources.map(({ props }) => props.uid)]));
  }
  for (const name of gone) known.set(mustKnow(stacks, name), new Set());
  return known;
}

function mustKnow(stacks: string[], name: string): string {
  const stack = stacks.find((stack) => nameOf(stack) === name);
  if (stack) return stack;
  const there = stacks.map(nameOf).join(", ") || "none";
  throw new OverlayError("INPUT_INVALID", `No lease belongs to stack ${name}; there are ${there}.`, "Check the name.");
}

/** A file says for which stack it is, but its scope only where it has resources of ours. */
function of(each: Export, stacks: string[]): [string, Export][] {
  const owned = each.resources.map(({ props }) => stackOf({ owner: props.owner } as Lease)!);
  if (owned.length > 0) return [...new Set(owned)].map((stack) => [stack, each]);
  const same = stacks.filter((stack) => stack.endsWith(`/urn:pulumi:${each.stack}`));
  if (same.length === 1) return [[same[0]!, each]];
  const why =
    each.stack === undefined
      ? "has no resource at all"
      : `could be ${same.map(nameOf).join(" or ") || "of no stack here"}`;
  throw new OverlayError(
    "INPUT_INVALID",
    `${each.source} ${why}, so that its stack is not known.`,
    "Name it with --gone instead.",
  );
}

async function askPulumi({ out }: Session, stacks: string[]): Promise<[string, Export][]> {
  const found: [string, Export][] = [];
  for (const stack of stacks) {
    try {
      const args = ["stack", "export", "--stack", nameOf(stack), "--non-interactive"];
      const { stdout } = await promisify(execFile)("pulumi", args, { maxBuffer: 1 << 30 });
      found.push([stack, parseExport(nameOf(stack), stdout)]);
    } catch (error) {
      if (isOverlayError(error)) throw error;
      // A stack that cannot be found here may live in another backend: that is no proof that it is gone.
      out.note(
        `pulumi knows nothing of ${nameOf(stack)}: ${String((error as { stderr?: string }).stderr || error).trim()}`,
      );
    }
  }
  return found;
}

const rows = async (pool: Pool, orphans: Lease[]) =>
  Promise.all(
    orphans.map(async (lease) => ({
      action: "release",
      value: formatExtents((await pool.spec(lease.pool))!.kind, lease.extents),
      pool: lease.pool,
      type: lease.type,
      owner: lease.owner,
      leaseId: lease.leaseId,
      ...(isForgotten(lease.owner) && { hosts: hostsOf(lease, orphans) }),
    })),
  );

async function releaseAll({ pool, out }: Session, orphans: Lease[]): Promise<void> {
  let released = 0;
  for (const { pool: name, leaseId, owner } of orphans) {
    try {
      if (await pool.release(name, leaseId)) released++;
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      process.exitCode = 1;
      out.note(`${owner}: ${error.message}`);
    }
  }
  out.note(`Released: ${released} of ${orphans.length}.`);
}

/** Leases that stayed reserved because a host did not answer when its resource was deleted. */

/** Those among `leases` that only these hosts may still use; true: all of them. */
export function ofForgottenHosts(out: Output, leases: Lease[], hosts: true | string[]): Lease[] {
  if (hosts === true) return leases;
  const known = new Set(leases.flatMap((lease) => hostsOf(lease, leases)));
  const unknown = hosts.find((host) => !known.has(host));
  if (unknown !== undefined) throw noSuchHost(unknown, [...known]);
  const concerned = leases.filter((lease) => hostsOf(lease, leases).some((host) => hosts.includes(host)));
  const found = concerned.filter((lease) => hostsOf(lease, leases).every((host) => hosts.includes(host)));
  if (concerned.length > found.length)
    out.note(`Left alone, since other forgotten hosts may use them, too: ${concerned.length - found.length}.`);
  return found;
}

const noSuchHost = (host: string, known: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `No lease is reserved for a forgotten host ${host}; there are ${known.join(", ") || "none"}.`,
    "Check the name: `overlayctl gc --forgotten` lists all.",
  );

/** Hosts that may still use what a lease holds, or what others hold in the pool that it opens. */
export function hostsOf(lease: Lease, all: Lease[]): string[] {
  const within = all.filter(({ pool }) => pool === lease.childPool).flatMap((each) => hostsOf(each, all));
  return [...new Set([...(forgottenHosts(lease) ?? [UNKNOWN]), ...within])];
}

/** Of leases that were reserved before their hosts were written to them. */
const UNKNOWN = "unknown";
