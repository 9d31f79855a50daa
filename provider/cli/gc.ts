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
import { findLeasesWithoutContainer } from "./containers";
import { type Login, withLoginOptions } from "./hosts";
import type { Output } from "./output";
import { parseExport, readExport, type StackExport, sortByDepth } from "./stack-export";

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
  withLoginOptions(
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
        session.out.list(await describeOrphans(session.pool, orphans), [
          "action",
          "value",
          "pool",
          "type",
          "hosts",
          "owner",
        ]);
        if (missing.length > orphans.length)
          session.out.note(`Left alone, since they are new: ${missing.length - orphans.length} (see --older-than).`);
        if (!options.yes) session.out.note(`Would be released: ${orphans.length}. Nothing is released without --yes.`);
        else await releaseAll(session, orphans);
      }),
    );

async function findMissing(session: Session, options: Options): Promise<Lease[]> {
  if (options.forgotten) return filterByHosts(session.out, await findForgotten(session.pool), options.forgotten);
  if (options.containers !== undefined) return findLeasesWithoutContainer(session, options.containers, options);
  return findLeasesWithoutStack(session, options);
}

async function findLeasesWithoutStack(session: Session, options: Options): Promise<Lease[]> {
  const leases = (await leasesOfStacks(session.pool)).filter(({ owner }) => !isForgotten(owner));
  const known = await readStackUids(session, options, leases);
  const unsure = new Set(leases.map((lease) => stackOf(lease)!).filter((stack) => !known.has(stack)));
  if (unsure.size > 0)
    session.out.note(`Not looked at, for want of an export: ${[...unsure].map(stackName).join(", ")}.`);
  return leases.filter((lease) => known.get(stackOf(lease)!)?.has(lease.uid) === false);
}

/** An owner is `SCOPE/urn:pulumi:STACK::PROJECT::TYPE::NAME`; its stack is all before the type. */
const stackOf = ({ owner }: Lease): string | undefined =>
  isStackOwner(owner) ? /^(.*\/urn:pulumi:[^:]+::[^:]+)::/.exec(owner)?.[1] : undefined;

const STACK = /^(.*)\/urn:pulumi:([^:]+)::([^:]+)$/;
const stackName = (stack: string): string => stack.replace(STACK, "$1/$3/$2");

/** Innermost pools first: a lease that opens a pool can go only when that pool is empty. */
async function leasesOfStacks(pool: Pool): Promise<Lease[]> {
  const leases: Lease[] = [];
  for (const { name } of await pool.pools()) leases.push(...(await pool.leases(name)));
  return sortByDepth(leases.filter((lease) => isCommitted(lease) && stackOf(lease))).reverse();
}

const findForgotten = async (pool: Pool): Promise<Lease[]> =>
  (await leasesOfStacks(pool)).filter(({ owner }) => isForgotten(owner));

/** Which uids each stack has; a stack of which nothing is known is not in it. */
async function readStackUids(session: Session, { stackExport, gone = [] }: Options, leases: Lease[]) {
  const stacks = [...new Set(leases.map((lease) => stackOf(lease)!))];
  const known = new Map<string, Set<string>>();
  const exports = stackExport
    ? (await Promise.all(stackExport.map(readExport))).flatMap((each) => stacksOfExport(each, stacks))
    : await askPulumi(
        session,
        stacks.filter((stack) => !gone.includes(stackName(stack))),
      );
  for (const [stack, { resources }] of exports) {
    known.set(stack, new Set([...(known.get(stack) ?? []), ...resources.map(({ props }) => props.uid)]));
  }
  for (const name of gone) known.set(requireStack(stacks, name), new Set());
  return known;
}

function requireStack(stacks: string[], name: string): string {
  const stack = stacks.find((stack) => stackName(stack) === name);
  if (stack) return stack;
  const there = stacks.map(stackName).join(", ") || "none";
  throw new OverlayError("INPUT_INVALID", `No lease belongs to stack ${name}; there are ${there}.`, "Check the name.");
}

/** A file says for which stack it is, but its scope only where it has resources of ours. */
function stacksOfExport(each: StackExport, stacks: string[]): [string, StackExport][] {
  const owned = each.resources.map(({ props }) => stackOf({ owner: props.owner } as Lease)!);
  if (owned.length > 0) return [...new Set(owned)].map((stack) => [stack, each]);
  const same = stacks.filter((stack) => stack.endsWith(`/urn:pulumi:${each.stack}`));
  if (same.length === 1) return [[same[0]!, each]];
  const why =
    each.stack === undefined
      ? "has no resource at all"
      : `could be ${same.map(stackName).join(" or ") || "of no stack here"}`;
  throw new OverlayError(
    "INPUT_INVALID",
    `${each.source} ${why}, so that its stack is not known.`,
    "Name it with --gone instead.",
  );
}

async function askPulumi({ out }: Session, stacks: string[]): Promise<[string, StackExport][]> {
  const found: [string, StackExport][] = [];
  for (const stack of stacks) {
    try {
      const args = ["stack", "export", "--stack", stackName(stack), "--non-interactive"];
      const { stdout } = await promisify(execFile)("pulumi", args, { maxBuffer: 1 << 30 });
      found.push([stack, parseExport(stackName(stack), stdout)]);
    } catch (error) {
      if (isOverlayError(error)) throw error;
      // A stack that cannot be found here may live in another backend: that is no proof that it is gone.
      out.note(
        `pulumi knows nothing of ${stackName(stack)}: ${String((error as { stderr?: string }).stderr || error).trim()}`,
      );
    }
  }
  return found;
}

const describeOrphans = async (pool: Pool, orphans: Lease[]) =>
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
export function filterByHosts(out: Output, leases: Lease[], hosts: true | string[]): Lease[] {
  if (hosts === true) return leases;
  const known = new Set(leases.flatMap((lease) => hostsOf(lease, leases)));
  const unknown = hosts.find((host) => !known.has(host));
  if (unknown !== undefined) throw unknownHostError(unknown, [...known]);
  const concerned = leases.filter((lease) => hostsOf(lease, leases).some((host) => hosts.includes(host)));
  const found = concerned.filter((lease) => hostsOf(lease, leases).every((host) => hosts.includes(host)));
  if (concerned.length > found.length)
    out.note(`Left alone, since other forgotten hosts may use them, too: ${concerned.length - found.length}.`);
  return found;
}

const unknownHostError = (host: string, known: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `No lease is reserved for a forgotten host ${host}; there are ${known.join(", ") || "none"}.`,
    "Check the name: `overlayctl gc --forgotten` lists all.",
  );

/** Hosts that may still use what a lease holds, or what others hold in the pool that it opens. */
export function hostsOf(lease: Lease, all: Lease[]): string[] {
  const within = all.filter(({ pool }) => pool === lease.childPool).flatMap((each) => hostsOf(each, all));
  return [...new Set([...(forgottenHosts(lease) ?? [UNKNOWN_HOST]), ...within])];
}

/** Of leases that were reserved before their hosts were written to them. */
const UNKNOWN_HOST = "unknown";
