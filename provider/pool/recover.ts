import { isOverlayError, OverlayError } from "../errors";
import { amend } from "./changing";
import type { Draft } from "./draft";
import { lapse, vacate } from "./endings";
import { enter } from "./entering";
import { fits, sameExtents } from "./extents";
import { newLeaseId, newUid } from "./ids";
import { leaseKey, nameKey, poolKey } from "./keys";
import { leasesIn, leasesOfOwner, log, sitting } from "./ledger";
import { mustBeOfTenant, poolFor } from "./pools";
import { given } from "./records";
import { isLive, isOver, sharedAs } from "./rows";
import { takePorts } from "./sharing";
import { type Enrolment, type Fact, isFirm, type Lease, type Opening, type PoolSpec } from "./types";
import { listOf, nameTaken, outside, taken } from "./wording";

/**
 * Leases that stand already and must be in the store: after a loss, from Pulumi's state; at the start, from a list of
 * addresses in use. Facts are not requests: nothing is chosen for them, no quota stops them, and promises and resting
 * leases give way to them. What contradicts another fact or a firm lease stops them all.
 */
export async function enrol(tx: Draft, facts: Fact[], opening: Opening[] = []): Promise<Enrolment> {
  const result: Enrolment = { added: [], known: [], conflicts: [] };
  for (const { pool, leaseId, opens } of opening) await amend(tx, pool, leaseId, { opens });
  for (const fact of facts) {
    try {
      const known = await standing(tx, fact);
      if (known) result.known.push(known);
      else result.added.push(await added(tx, fact));
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      result.conflicts.push({ fact, error });
    }
  }
  if (result.conflicts.length > 0) tx.discard();
  return result;
}

/** The lease that the fact speaks of, if the store has it just so. */
async function standing(tx: Draft, { pool, owner, want, identity }: Fact): Promise<Lease | undefined> {
  const candidates = identity
    ? await leasesIn(tx, pool, [identity.uid])
    : (await leasesOfOwner(tx, pool, owner)).filter(({ extents }) => sameExtents(extents, want));
  const held = candidates.find((lease) => isFirm(lease) && isLive(lease, tx.now));
  const lease = held ?? (identity && candidates[0]);
  if (!lease || !identity) return lease;
  const same = held && lease.leaseId === identity.leaseId && lease.owner === owner && sameExtents(lease.extents, want);
  if (same) return lease;
  const { spec } = await poolFor(tx, pool, true);
  throw new OverlayError(
    "STORE_CONFLICT",
    `The store has lease ${lease.leaseId} of ${lease.owner} on ${listOf(spec.kind, lease.extents)} (${lease.state}); here it is ${identity.leaseId} of ${owner} on ${listOf(spec.kind, want)}.`,
    "The store knows something newer: export the stack again.",
  );
}

async function added(tx: Draft, fact: Fact): Promise<Lease> {
  const { spec } = await poolFor(tx, fact.pool, true);
  const tenant = fact.tenant ?? spec.tenant;
  mustBeOfTenant(spec, tenant);
  const inTheWay = [...(await sitters(tx, spec, fact)), ...(await namesakes(tx, fact))];
  for (const { uid, pool } of inTheWay) {
    const [lease] = await leasesIn(tx, pool, [uid]);
    if (lease) await (isOver(lease, tx.now) ? lapse(tx, lease, tx.now) : vacate(tx, lease));
  }
  await takePorts(tx, spec, fact.want, fact.ports ?? []);
  const lease = await enter(tx, undefined, leaseOf(tx, { ...fact, ...(tenant && { tenant }) }), fact);
  await log(tx, "enrolled", lease);
  return lease;
}

const stays = (tx: Draft, lease: Lease): boolean => isFirm(lease) && isLive(lease, tx.now);

/** Who has to go for it. Those who share the value with it stay. */
async function sitters(tx: Draft, spec: PoolSpec, fact: Fact): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const extent of fact.want) {
    if (!fits(spec, { extents: [extent] })) throw outside(spec, extent);
    const strangers = (await sitting(tx, spec.name, extent)).filter((lease) => !shares(lease, fact));
    const holder = strangers.find((lease) => stays(tx, lease));
    if (holder) throw taken(spec, extent, holder, fact.owner);
    found.push(...strangers);
  }
  return found;
}

const shares = (lease: Lease, fact: Fact): boolean =>
  fact.sharingKey !== undefined && sharedAs(lease) === sharedAs(fact) && sameExtents(lease.extents, fact.want);

/** Who has one of its names, or has its pool open. */
async function namesakes(tx: Draft, { names = [], opens }: Fact): Promise<Lease[]> {
  const found: Lease[] = [];
  const claims = names.map((name) => ({ name, at: nameKey(name) }));
  for (const { name, at } of claims) found.push(...(await holderAt(tx, name, await tx.get(at))));
  if (opens) found.push(...(await holderAt(tx, opens.name, (await tx.get(poolKey(opens.name)))?.opener)));
  return found;
}

async function holderAt(tx: Draft, name: string, place?: { pool: string; uid: string }): Promise<Lease[]> {
  const holder = place && (await tx.get(leaseKey(place.pool, place.uid)));
  if (holder && stays(tx, holder)) throw nameTaken(name, holder);
  return holder ? [holder] : [];
}

function leaseOf(tx: Draft, fact: Fact): Lease {
  const { pool, owner, type, want, identity, tenant, labels, usedBy, data, by, sharingKey, ports, state } = fact;
  const uid = identity?.uid ?? newUid(owner);
  return given<Lease>({
    pool,
    owner,
    type,
    extents: want,
    state: state ?? (usedBy === undefined ? "reserved" : "used"),
    uid,
    leaseId: identity?.leaseId ?? newLeaseId(uid),
    createdAt: tx.now,
    updatedAt: tx.now,
    lastSeen: tx.now,
    tenant,
    labels,
    usedBy,
    data,
    by,
    sharingKey,
    ports,
  });
}
