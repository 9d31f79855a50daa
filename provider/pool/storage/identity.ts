import { randomBytes } from "node:crypto";
import { OverlayError } from "../../errors";
import type { LoggedEvent, StoreIdentity, StoreVersion } from "../types";
import { appendEvents } from "./event-log";
import { epochKey, epochsFrom, headKey, type Key, recoveredIds, secretKey } from "./keys";
import { type Epoch, type StoreHead, wordCodec } from "./records";
import type { WriteBuffer } from "./write-buffer";

/**
 * Which store this is, and its version: the number of its commits. A move to another engine copies both. A store whose version
 * is lower than one that was seen has lost commits.
 *
 * After an older backup was restored, new commits take the numbers of the lost ones. So every second in which something is
 * committed begins an epoch with a random id, and the version that a stack has seen comes with the id of its epoch: the same
 * version in another epoch is one of another history.
 */
const EPOCH_MS = 1000;
/** Older epochs are deleted; versions in them are accepted. */
const KEPT_EPOCHS = 50_000;
/** The epoch of versions that were recovered from what stacks have seen. */
const ANY = "";
/** The same, after an operator has confirmed that all leases up to a version were recovered. */
const COMPLETE = "00000000";

const idKey: Key<string> = { ...secretKey("identity"), codec: wordCodec };

export interface Advance {
  version: StoreVersion;
  events: LoggedEvent[];
}

/** Every commit calls this. Returns its version, and its changes with their ids in the event log. */
export async function advance(tx: WriteBuffer): Promise<Advance> {
  const head = await tx.get(headKey);
  const isSameEpoch = head && Math.abs(tx.now - head.since) < EPOCH_MS;
  const next = isSameEpoch ? { ...head, last: head.last + 1 } : await beginEpoch(tx, head);
  const events = await appendEvents(tx, head?.events ?? 0);
  tx.put(headKey, { ...next, ...(events.length > 0 && { events: events.at(-1)!.id }) });
  return { version: { version: next.last, epoch: next.id }, events };
}

async function beginEpoch(tx: WriteBuffer, before: StoreHead | undefined): Promise<StoreHead> {
  const [first, number] = before ? [before.last + 1, before.number + 1] : [1, 0];
  if (before) tx.put(epochKey(before.last), { id: before.id, first: before.first, last: before.last });
  const oldest = number > KEPT_EPOCHS ? await tx.first(epochsFrom(0)) : undefined;
  if (oldest) tx.delete(epochKey(oldest.last));
  const begun = { id: randomBytes(4).toString("hex"), first, last: first, since: tx.now, number };
  return { ...begun, ...(before?.events !== undefined && { events: before.events }) };
}

type FoundIdentity = Omit<StoreIdentity, "id"> & {
  /** A store that was never used has none yet. */
  id: string | undefined;
  /** Ids of other stores whose leases were recovered into this one. */
  recovered: string[];
};

export async function readIdentity(tx: WriteBuffer): Promise<FoundIdentity> {
  await tx.prefetch([idKey, headKey, recoveredIds]);
  const recovered = (await tx.get(recoveredIds)) ?? [];
  const { last: version = 0, id: epoch = ANY } = (await tx.get(headKey)) ?? {};
  return { id: await tx.get(idKey), version, epoch, recovered };
}

/** The epoch in which the store was `seen`; `recovered`: it is accepted because the store was rebuilt since. */
export async function findSeen(
  tx: WriteBuffer,
  seen: StoreIdentity,
  place = "this place",
): Promise<Epoch & { recovered: boolean }> {
  const { id, recovered, version } = await readIdentity(tx);
  if (id !== seen.id && !recovered.includes(seen.id)) throw anotherStoreError(place, id, seen);
  const head = await tx.get(headKey);
  if (!head || version < seen.version) throw behindError(place, version, seen);
  const epoch = seen.version >= head.first ? head : (await tx.first(epochsFrom(seen.version)))!;
  const isForgotten = epoch.first > seen.version;
  if (![seen.epoch, ANY, COMPLETE].includes(epoch.id) && !isForgotten) throw divergedError(place, seen);
  const isRecovered = !isForgotten && epoch.id === ANY && seen.epoch !== ANY;
  return { ...epoch, recovered: isRecovered, ...(isForgotten && { first: 0, last: seen.version }) };
}

const RESTORE =
  "Restore the newer store, or bring this one up to date with `overlayctl recover --stack-export FILE…` and exports of all its stacks.";

const behindError = (place: string, version: number, seen: StoreIdentity): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The store at ${place} is at version ${version}, but this stack has seen version ${seen.version}: an older backup was restored, or commits were lost in a failover. Nothing is given out.`,
    RESTORE,
  );

const divergedError = (place: string, seen: StoreIdentity): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The store at ${place} does not have version ${seen.version} as this stack has seen it: an older backup was restored, and others have written to it since. Nothing is given out.`,
    RESTORE,
  );

const anotherStoreError = (place: string, id: string | undefined, seen: StoreIdentity): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The store at ${place} is ${id === undefined ? "new" : `store ${id}`}, but this stack was deployed with store ${seen.id}. Nothing is given out.`,
    "Point overlay:store at the store that this stack was deployed with, or rebuild it with `overlayctl recover`.",
  );

/**
 * After a recovery: stacks of the stores `from` that have seen `version` or less accept this one; what they miss in it is lost, unless
 * the recovery was `complete`. A store without an id becomes the first of them.
 */
export async function adoptIdentity(
  tx: WriteBuffer,
  from: string[],
  version: number,
  complete: boolean,
): Promise<void> {
  const own = await tx.get(idKey);
  if (own === undefined && from[0] !== undefined) tx.put(idKey, from[0]);
  const { id, recovered, version: reached } = await readIdentity(tx);
  const all = new Set([...recovered, ...from.filter((each) => each !== id)]);
  if (all.size > recovered.length) tx.put(recoveredIds, [...all]);
  for (const { last } of await tx.all(epochsFrom(0))) tx.delete(epochKey(last));
  const last = Math.max(version, reached);
  const events = (await tx.get(headKey))?.events;
  const head = { id: complete ? COMPLETE : ANY, first: 0, last, since: 0, number: 0 };
  tx.put(headKey, { ...head, ...(events !== undefined && { events }) });
}
