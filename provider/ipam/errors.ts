import { formatNumberRange, formatRange } from "../addressing/ip";
import { type Code, OverlayError } from "../errors";
import { formatTime } from "../format-time";
import { formatTenant, isForgotten, isSameStack, shortName } from "../owner";
import { capitalize, describePool, RUNNERS } from "../pool-names";
import { capacityOf } from "./ranges";
import type { Replacement } from "./run-plan";
import type { Condition, Lease, PoolSpec, Port, Tenant, ValueRange } from "./types";

/** Errors and warnings of the pool. */

const KINDS: Record<PoolSpec["kind"], { noun: string; taken: Code; exhausted: Code; outside: Code }> = {
  address: { noun: "address", taken: "IP_IN_USE", exhausted: "POOL_EXHAUSTED", outside: "IP_OUTSIDE_POOL" },
  space: { noun: "range", taken: "POOL_OVERLAP", exhausted: "POOL_EXHAUSTED", outside: "IP_OUTSIDE_POOL" },
  id: { noun: "runner id", taken: "RUNNER_ID_TAKEN", exhausted: "RUNNER_IDS_EXHAUSTED", outside: "INPUT_INVALID" },
  port: { noun: "port", taken: "PORT_CONFLICT", exhausted: "POOL_EXHAUSTED", outside: "INPUT_INVALID" },
};

/** By the first word of the name that is taken. */
const NAMES: Record<string, Code> = {
  runner: "RUNNER_NAME_TAKEN",
  network: "NETWORK_EXISTS",
  user: "RESERVATION_EXISTS",
  host: "DEVICE_FOREIGN",
  pool: "POOL_OVERLAP",
  key: "KEY_DUPLICATE",
};

export const formatRangeOf = (kind: PoolSpec["kind"], range: ValueRange): string =>
  kind === "id" || kind === "port" ? formatNumberRange(range) : formatRange(range);

export const formatRangesOf = (kind: PoolSpec["kind"], ranges: ValueRange[]): string =>
  ranges.map((range) => formatRangeOf(kind, range)).join(", ");

const describeValues = ({ kind }: Pick<PoolSpec, "kind">, ranges: ValueRange[]): string =>
  `${KINDS[kind].noun} ${formatRangesOf(kind, ranges)}`;

/** Leases without values are those that the reader may not see: their owner is only a word, such as "another tenant". */
function describeHolders(spec: PoolSpec, leases: Lease[]): string {
  const texts = leases.map((lease) =>
    lease.ranges.length === 0
      ? lease.owner
      : `${formatRangesOf(spec.kind, lease.ranges)} ${lease.owner} (${describeState(lease)})`,
  );
  return [...new Set(texts)].join("; ");
}

const describeState = ({ state, lastSeen }: Lease): string =>
  state === "offered" ? "promised in a preview" : `last seen ${formatTime(lastSeen)}`;

export function takenError(spec: PoolSpec, range: ValueRange, holder: Lease, owner: string): OverlayError {
  const what =
    spec.kind === "space"
      ? `${formatRangeOf("space", range)} overlaps ${formatRangesOf("space", holder.ranges) || "a range"}, which is ${holder.state === "offered" ? "promised to" : "held by"} ${holder.owner}${holder.childPool ? ` for ${describePool(holder.childPool)}` : ""}.`
      : `${capitalize(describeValues(spec, [range]))} of ${describePool(spec.name)} is ${heldBy(holder)}.`;
  return new OverlayError(
    KINDS[spec.kind].taken,
    what,
    describeFix(
      holder,
      owner,
      holder.state === "offered"
        ? offeredFix(spec, holder, owner)
        : `Request another ${spec.kind === "space" ? "range" : "value"}, or release that one first.`,
    ),
  );
}

function offeredFix({ kind }: PoolSpec, holder: Lease, owner: string): string {
  if (!isSameStack(holder.owner, owner))
    return `Request another value, or wait: the promise of the preview ends at ${formatTime(holder.expiresAt!)} unless an up claims it first.`;
  return kind === "space"
    ? "Give one of the two another range."
    : "Request another value. If the pool has chosen it for that resource, request it as a literal before the program's first `await`: then the pool chooses another one.";
}

const heldBy = ({ state, owner }: Lease): string => `${state === "offered" ? "promised to" : `${state} by`} ${owner}`;

export const planStaleError = (spec: PoolSpec, range: ValueRange, holder: Lease, owner: string): OverlayError =>
  new OverlayError(
    "PLAN_STALE",
    `${capitalize(describeValues(spec, [range]))} of ${describePool(spec.name)} is ${heldBy(holder)} now.`,
    describeFix(holder, owner, "Run up again: it will plan with what is free now."),
  );

/** A promise that cannot be kept: an error in an up without a preview. */
export const promiseBrokenError = (spec: PoolSpec, broken: Lease, holder: Lease | undefined): OverlayError =>
  staleError(brokenText(spec, broken, holder));

const staleError = (what: string): OverlayError =>
  new OverlayError("PLAN_STALE", what, "Run preview, or up without --skip-preview, to see what is given instead.");

/** The same in a preview, which shows another value. */
export const promiseBrokenWarning = (spec: PoolSpec, broken: Lease, holder: Lease | undefined): string =>
  `${brokenText(spec, broken, holder)} This preview shows another one.`;

function brokenText(spec: PoolSpec, broken: Lease, holder: Lease | undefined): string {
  const now = holder?.owner ?? broken.end?.takenBy;
  const why = now ? `is now ${holder ? heldBy(holder) : `held by ${now}`}` : "is no longer given out by the pool";
  return `${promiseText(spec, broken)} and ${why}.`;
}

/** The promise is about another pool than `spec`, which is chosen now. */
export const promiseMovedError = (spec: PoolSpec, promised: Lease): OverlayError =>
  staleError(movedText(spec, promised));

export const promiseMovedWarning = (spec: PoolSpec, promised: Lease): string => movedText(spec, promised);

const movedText = (spec: PoolSpec, promised: Lease): string =>
  `${promiseText(spec, promised)}, but the pool that is now chosen for it is ${describePool(spec.name)}.`;

const promiseText = (spec: PoolSpec, { pool, owner, ranges, createdAt }: Lease): string =>
  `${capitalize(describeValues(spec, ranges))} of ${describePool(pool)} was promised to ${shortName(owner)} at ${formatTime(createdAt)}`;

/** Pulumi deletes a resource that was removed from the program at the end of the up, so its lease is still held. */
function describeFix(holder: Lease, owner: string, otherwise: string): string {
  if (isForgotten(holder.owner))
    return "Request another value. A forgotten host may still use that one: `overlayctl gc --forgotten` shows which, and releases it.";
  return holder.state !== "offered" && isSameStack(holder.owner, owner)
    ? "Request another value. If that resource is this one under its old name, set `aliases`. If it is to be removed, remove it in an earlier up. If it gets another value in this up, set that value explicitly, and declare it before the program's first `await`."
    : otherwise;
}

export const outsideError = (spec: PoolSpec, range: ValueRange): OverlayError =>
  new OverlayError(
    KINDS[spec.kind].outside,
    `${capitalize(describeValues(spec, [range]))} is not in ${describePool(spec.name)} (${formatRangesOf(spec.kind, spec.ranges)}).`,
    "Request one inside it.",
  );

/** A child pool with values outside of those that its lease has for it. */
export const outsideLeaseError = (spec: PoolSpec, held: ValueRange[]): OverlayError =>
  new OverlayError(
    KINDS[spec.kind].outside,
    `${capitalize(describePool(spec.name))} would give out ${formatRangesOf(spec.kind, spec.ranges)}; its lease has ${formatRangesOf(spec.kind, held)} for it.`,
    "Give the pool values of its lease only.",
  );

export const addressSpaceError = (name: string): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `${capitalize(describePool(name))} belongs to no lease.`,
    "Choose another name for the pool.",
  );

export const reservedError = (spec: PoolSpec, range: ValueRange): OverlayError =>
  new OverlayError(
    "IP_RESERVED",
    `${capitalize(describeValues(spec, [range]))} of ${describePool(spec.name)} is reserved and never given out.`,
    "Request another value.",
  );

export const notDeletedError = ({ pool, owner }: Lease): OverlayError =>
  new OverlayError(
    "POOL_IN_USE",
    `${shortName(owner)} is not created: its old lease in ${describePool(pool)}, which is being replaced, has not been released.`,
    "See why its delete failed, and run up again.",
  );

export const notRequestedError = (spec: PoolSpec): OverlayError =>
  new OverlayError(
    "IP_NOT_REQUESTED",
    `${capitalize(describePool(spec.name))} gives only values that are requested explicitly.`,
    `Set the ${KINDS[spec.kind].noun} that you need.`,
  );

export const noBlocksError = (spec: PoolSpec): OverlayError =>
  new OverlayError(
    "IP_RESERVED",
    `${capitalize(describePool(spec.name))} avoids .0 and .255 (avoidBoundaryIps), so no block can be carved from it.`,
    "Set avoidBoundaryIps on the pools that are carved from it instead.",
  );

export const exhaustedError = (spec: PoolSpec, oldest: Lease[]): OverlayError =>
  new OverlayError(
    KINDS[spec.kind].exhausted,
    `No ${KINDS[spec.kind].noun} is free in ${describePool(spec.name)} (${formatRangesOf(spec.kind, spec.ranges)}). Holders, longest unseen first: ${describeHolders(spec, oldest) || "none"}.`,
    "Release what is no longer needed, or make the pool larger.",
  );

/** Offers of one tenant or token may hold only a part of a pool that others use, too. */
export const offerShareError = ({ name }: PoolSpec, held: bigint, most: bigint): OverlayError =>
  new OverlayError(
    "POOL_QUOTA",
    `Previews of this access token or its tenant would hold ${held} values of ${describePool(name)}, which others use, too; they may hold ${most}.`,
    "Deploy what was previewed, or wait until its offers expire (overlay:offerTtl).",
  );

export const offersTooLargeError = ({ name }: PoolSpec, count: number, bytes: number): OverlayError =>
  new OverlayError(
    "POOL_QUOTA",
    `Previews of this access token or its tenant show ${count} values in ${describePool(name)}, the last one with ${bytes} bytes of labels and data: more than all requests there can read.`,
    "Deploy what was previewed, wait until its offers expire (overlay:offerTtl), or shorten the labels.",
  );

/** Everything else in a pool reads it, too. */
export const tooLargeError = (name: string, bytes: number, most: number): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `The labels, data, names and ports of a lease in ${describePool(name)}, or the data of its pool, have ${bytes} bytes; at most ${most} are kept.`,
    "Shorten the labels, or keep the data elsewhere.",
  );

export const quotaError = ({ name, quota }: PoolSpec, would: { leases: number; values: bigint }): OverlayError =>
  new OverlayError(
    "POOL_QUOTA",
    `${capitalize(describePool(name))} would have ${would.leases} leases on ${would.values} values; its quota is ${JSON.stringify(quota)}.`,
    "Release some, or raise the pool's quota.",
  );

/** The warning of a pool that is filled to its `warnAtPercent`. */
export function fullnessWarning(spec: PoolSpec, held: bigint): string | undefined {
  const { name, kind, warnAtPercent } = spec;
  const capacity = capacityOf(spec);
  if (warnAtPercent === undefined || held * 100n < capacity * BigInt(warnAtPercent)) return undefined;
  return `${warnAtPercent} % or more of the ${capacity} ${plural(KINDS[kind].noun)} of ${describePool(name)} are held or promised.`;
}

const plural = (noun: string): string => (noun.endsWith("s") ? `${noun}es` : `${noun}s`);

export const poolMissingError = (pool: string, why = "does not exist"): OverlayError =>
  new OverlayError(
    "POOL_NOT_FOUND",
    `${capitalize(describePool(pool))} ${why}.`,
    "Create its resource first, or correct the name.",
  );

export const tenantError = (
  { name }: Pick<PoolSpec, "name">,
  owner: Tenant,
  caller: Tenant | undefined,
): OverlayError =>
  new OverlayError(
    "TENANT_MISMATCH",
    `${capitalize(describePool(name))} belongs to tenant ${formatTenant(owner)}; this request comes from ${caller ? `tenant ${formatTenant(caller)}` : "no tenant"}.`,
    `Set \`tenant\` on the resource, or overlay:tenant (OVERLAY_TENANT), to ${formatTenant(owner)} if that is your tenant, or use another pool.`,
  ).about("tenant");

export const poolInUseError = (spec: PoolSpec, leases: Lease[], why: string): OverlayError =>
  new OverlayError(
    "POOL_IN_USE",
    `${capitalize(describePool(spec.name))} ${why}: ${describeHolders(spec, leases)}.`,
    howToEmpty(spec, leases),
  );

/** `removed`: what the program no longer declares. `spec`: the pool that it opened. */
export const cannotRemoveWarning = (removed: Lease, spec: PoolSpec, leases: Lease[]): string =>
  `the program has not declared ${shortName(removed.owner)}. If it is to be deleted, that will fail with POOL_IN_USE: ${describePool(spec.name)} has leases that would stay: ${describeHolders(spec, leases)}. ${howToEmpty(spec, leases)}`;

function howToEmpty({ name, kind }: PoolSpec, leases: Lease[]): string {
  if (leases.some(({ owner }) => isForgotten(owner))) return `Delete what holds them first.${FORGOTTEN}`;
  const first = name.startsWith(RUNNERS)
    ? "Drain the runner first: declare it with `cordon: true`, and release them with `overlayctl ip release`, or wait until they expire (docs/draining.md)."
    : "Delete what holds them first.";
  return first + (kind === "address" ? LEFT_BEHIND : "");
}

/** `spec`: the pool with the leases, which is the replaced one, or ends with it. */
export function cannotReplaceError({ pool, changed }: Replacement, spec: PoolSpec, leases: Lease[]): OverlayError {
  const which = spec.name === pool ? "it" : `${describePool(spec.name)}, which ends with it,`;
  return new OverlayError(
    "POOL_IN_USE",
    `${capitalize(describePool(pool))} cannot be replaced (change of ${changed.join(", ")}): ${which} has leases that would stay: ${describeHolders(spec, leases)}.`,
    `${howToEmpty(spec, leases)} Only resources of the same stack that get it as a resource, not by name, are replaced with it.`,
  );
}

const FORGOTTEN = " What is kept for a forgotten host is released by `overlayctl gc --forgotten`.";

const LEFT_BEHIND =
  " What no stack has any more (retainOnDelete, a lost state) is freed by `overlayctl ip free --ip ADDRESS --force`.";

/** `pool`: of the request for the name. */
export function nameTakenError(name: string, holder: Lease, pool: string): OverlayError {
  const [kind, host] = name.split("/");
  const code = NAMES[kind!] ?? "INPUT_INVALID";
  if (kind === "host" && holder.type === "RunnerSubnet" && holder.pool === pool)
    return new OverlayError(
      code,
      `Host ${host} is a runner of ${describePool(pool)} already: ${holder.owner} (${holder.state}).`,
      "A host can be one runner of a network. Give this one another host, or remove that one in an earlier up.",
    );
  if (kind === "key")
    return new OverlayError(
      code,
      `The public key ${name.slice("key/".length)} of this host is also that of ${holder.owner}: one of the disks is a copy of the other. Nothing was changed on hosts.`,
      "Remove the key on the copied host (`rm /var/lib/overlay/NETWORK/tunnel.key`), and run up again: it makes another one.",
    );
  return new OverlayError(
    code,
    `${describeName(name)} belongs to ${holder.owner} (${holder.type}, ${holder.state}).`,
    `Choose another ${inputOfName(name)}, or remove that one first.`,
  );
}

export const namePromisedWarning = (name: string, offer: Lease): string =>
  `${describeName(name)} was also shown to ${offer.owner} by a preview. The first of the two that is deployed gets it.`;

/** The same for a range of an address space. */
export const rangePromisedWarning = ({ kind }: PoolSpec, values: ValueRange[], { owner }: Lease): string =>
  `${formatRangesOf(kind, values)} overlaps what a preview has shown to ${owner}. The first of the two that is deployed gets it.`;

/** A name that only one lease can hold, in words: `host/10.0.0.5/link/br0` is the device br0 on that host. */
function describeName(name: string): string {
  const [kind, first = "", second, ...rest] = name.split("/");
  if (kind === "host") {
    const device = rest.join("/");
    if (second === "udp") return `UDP port ${device} on host ${first}`;
    return second === "devices" ? `Device prefix ${device} on host ${first}` : `Device ${device} on host ${first}`;
  }
  if (kind === "runner") return `Runner name ${second} of network ${first}`;
  if (kind === "user") return `The address for ${[second, ...rest].join("/")} on network ${first}`;
  return `${capitalize(kind!)} name ${name.slice(kind!.length + 1)}`;
}

/** The input that decides the name. */
function inputOfName(name: string): string {
  const [kind, , second] = name.split("/");
  if (kind === "host" && second === "udp") return "wireguardPort";
  if (kind === "host") return second === "devices" ? "devicePrefix" : "bridgeName or hubInterface";
  return kind === "user" ? "usedBy" : "name";
}

export const fencedError = (pool: string, leaseId: string): OverlayError =>
  new OverlayError(
    "LEASE_FENCED",
    `Lease ${leaseId} in ${describePool(pool)} is no longer current.`,
    "Run up again, or refresh.",
  );

export function leaseChangedError(lease: Lease, { state, usedBy }: Condition): OverlayError {
  const how = state
    ? `is ${stateText(lease)} now, and not ${stateText({ state, ...(usedBy !== undefined && { usedBy }) })}`
    : "was changed after it was read";
  const what = `Lease ${lease.leaseId} in ${describePool(lease.pool)} ${how}.`;
  return new OverlayError("LEASE_CHANGED", what, "Nothing was changed. Read it again.");
}

const stateText = ({ state, usedBy }: Pick<Lease, "state" | "usedBy">): string =>
  usedBy === undefined ? state : `${state} by ${usedBy}`;

/** A second claim by an owner that may have one lease. */
export const alreadyHeldError = (spec: PoolSpec, lease: Lease): OverlayError =>
  new OverlayError(
    "RESERVATION_EXISTS",
    `${lease.owner} holds ${describeValues(spec, lease.ranges)} of ${describePool(spec.name)} already (${stateText(lease)}).`,
    "Release that one first.",
  );

export const leaseExpiredError = (lease: Lease): OverlayError =>
  new OverlayError(
    "LEASE_EXPIRED",
    `Lease ${lease.leaseId} of ${lease.owner} in ${describePool(lease.pool)} ended at ${formatTime(lease.expiresAt!)}.`,
    "Run up again: it requests a new one.",
  );

export const notClaimedError = (lease: Lease): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `Lease ${lease.leaseId} of ${lease.owner} in ${describePool(lease.pool)} is only an offer.`,
    "Claim it first.",
  );

export const ttlWithPoolError = (lease: Lease, { name }: PoolSpec): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `${lease.owner} has a ttl, but owns ${describePool(name)}: the pool and its leases would be deleted with it.`,
    "Leave out the ttl.",
  );

export const portConflictError = (
  spec: PoolSpec,
  range: ValueRange,
  { protocol, port }: Port,
  holder: Lease,
): OverlayError =>
  new OverlayError(
    "PORT_CONFLICT",
    `Port ${protocol}/${port} on ${formatRangeOf(spec.kind, range)} of ${describePool(spec.name)} belongs to ${holder.owner}.`,
    "Choose another port, or another sharing key. To move a port between resources of one stack, remove it in one up and add it in the next.",
  );

export const sharingConflictError = (
  spec: PoolSpec,
  range: ValueRange,
  key: string | undefined,
  holder: Lease,
): OverlayError =>
  new OverlayError(
    "SHARING_CONFLICT",
    `${capitalize(describeValues(spec, [range]))} of ${describePool(spec.name)} is shared by ${holder.owner} under another key or tenant than ${key ? `'${key}'` : "none"}.`,
    "Use the same sharing key and tenant, or another address.",
  );

/** `lease`: the quarantined one, as its reader may see it. */
export const quarantineWarning = (spec: PoolSpec, ranges: ValueRange[], lease: Lease): string =>
  `${capitalize(describeValues(spec, ranges))} of ${describePool(spec.name)} was released by ${lease.owner} at ${formatTime(lease.updatedAt)} and is given out again before its quarantine ends.`;
