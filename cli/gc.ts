import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { Option } from "commander";
import { isOverlayError, OverlayError } from "../provider/errors";
import type { Ipam, Lease } from "../provider/ipam";
import { formatRangesOf } from "../provider/ipam/errors";
import { findSpec, listSpecs } from "../provider/ipam/interface";
import { isCommitted } from "../provider/ipam/types";
import { forgottenHosts } from "../provider/lifecycle/delete";
import { isForgotten, isStackOwner } from "../provider/owner";
import { command, type Session, wholeNumber, withPool } from "./command";
import { findLeasesWithoutContainer } from "./containers";
import { type Login, withLoginOptions } from "./hosts";
import type { Output } from "./output";
import { parseExport, readExport, type StackExport, sortByDepth } from "./stack-export";

/** `overlayctl gc`: leases whose stack, container or host is gone. */

interface Options extends Login {
  containers?: string;
  stackExport?: string[];
  gone?: string[];
  /** true: all of them. */
  forgotten?: true | string[];
  olderThan?: number;
  yes?: boolean;
}

/** Releases leases without a user. It does not change hosts. */
export const gcCommand = () =>
  withLoginOptions(
    command(
      "gc",
      "Find leases that their stack or container no longer has, or that are reserved for forgotten hosts; --yes releases them.",
    ),
  )
    .option("--stack-export <file...>", "output of `pulumi stack export`; default: run it for every stack in the store")
    .option("--gone <stack...>", "a stack that was removed: SCOPE/PROJECT/STACK")
    .option("--containers <network>", "check against Docker on each runner of this network, instead of stacks")
    .addOption(
      new Option(
        "--forgotten [host...]",
        "leases reserved for hosts that did not answer when their resource was deleted; with hosts, only leases that no other host may use",
      ).conflicts(["containers", "stackExport", "gone"]),
    )
    .option(
      "--older-than <seconds>",
      "skip newer leases, because an up may be in progress; default: 3600, with --forgotten 0",
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
          session.out.note(`Skipped, because they are too new: ${missing.length - orphans.length} (see --older-than).`);
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
    session.out.note(`Skipped, because there is no export: ${[...unsure].map(stackName).join(", ")}.`);
  return leases.filter((lease) => known.get(stackOf(lease)!)?.has(lease.uid) === false);
}

/** An owner is `SCOPE/urn:pulumi:STACK::PROJECT::TYPE::NAME`; the part before the type names the stack. */
const stackOf = ({ owner }: Lease): string | undefined =>
  isStackOwner(owner) ? /^(.*\/urn:pulumi:[^:]+::[^:]+)::/.exec(owner)?.[1] : undefined;

const STACK = /^(.*)\/urn:pulumi:([^:]+)::([^:]+)$/;
const stackName = (stack: string): string => stack.replace(STACK, "$1/$3/$2");

/** Innermost pools first: a lease with a child pool can be released only when that pool is empty. */
async function leasesOfStacks(pool: Ipam): Promise<Lease[]> {
  const leases: Lease[] = [];
  for (const { name } of await listSpecs(pool)) leases.push(...(await pool.leases(name)));
  return sortByDepth(leases.filter((lease) => isCommitted(lease) && stackOf(lease))).reverse();
}

const findForgotten = async (pool: Ipam): Promise<Lease[]> =>
  (await leasesOfStacks(pool)).filter(({ owner }) => isForgotten(owner));

/** The uids in the state of each stack, for stacks with an export. */
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

/** An export names its stack, but its scope only if it has resources of this package. */
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
    `${each.source} ${why}, so its stack is not known.`,
    "Use --gone with the name of the stack.",
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
      // A stack that is not found may be in another backend, so its leases are not released.
      out.note(
        `pulumi cannot export ${stackName(stack)}: ${String((error as { stderr?: string }).stderr || error).trim()}`,
      );
    }
  }
  return found;
}

const describeOrphans = async (pool: Ipam, orphans: Lease[]) =>
  Promise.all(
    orphans.map(async (lease) => ({
      action: "release",
      value: formatRangesOf((await findSpec(pool, lease.pool))!.kind, lease.ranges),
      pool: lease.pool,
      type: lease.type,
      owner: lease.owner,
      leaseId: lease.leaseId,
      ...(isForgotten(lease.owner) && { hosts: hostsOfForgotten(lease, orphans) }),
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

// Leases that stay reserved because a host did not answer when its resource was deleted.

/** The leases that only these hosts may still use; true: all. */
function filterByHosts(out: Output, leases: Lease[], hosts: true | string[]): Lease[] {
  if (hosts === true) return leases;
  const known = new Set(leases.flatMap((lease) => hostsOfForgotten(lease, leases)));
  const unknown = hosts.find((host) => !known.has(host));
  if (unknown !== undefined) throw unknownHostError(unknown, [...known]);
  const concerned = leases.filter((lease) => hostsOfForgotten(lease, leases).some((host) => hosts.includes(host)));
  const found = concerned.filter((lease) => hostsOfForgotten(lease, leases).every((host) => hosts.includes(host)));
  if (concerned.length > found.length)
    out.note(`Skipped, because other forgotten hosts may use them, too: ${concerned.length - found.length}.`);
  return found;
}

const unknownHostError = (host: string, known: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `No lease is reserved for a forgotten host ${host}; there are ${known.join(", ") || "none"}.`,
    "Check the name: `overlayctl gc --forgotten` lists all.",
  );

/** Hosts that may still use the values of a lease, or of leases in its child pool. */
export function hostsOfForgotten(lease: Lease, all: Lease[]): string[] {
  const within = all.filter(({ pool }) => pool === lease.childPool).flatMap((each) => hostsOfForgotten(each, all));
  return [...new Set([...(forgottenHosts(lease) ?? []), ...within])];
}
