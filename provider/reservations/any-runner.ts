import { formatIp } from "../addressing/ip";
import { isOverlayError, OverlayError } from "../errors";
import { findUsage } from "../ipam/interface";
import type { Ipam, Lease, Request, Usage } from "../ipam/types";
import { type Candidate, findCandidates, noRunnerError, type Placement, pickRunner } from "../resources/placement";
import { isCordoned, userLeaseName } from "../resources/runner-subnet";
import { type AddressPool, addressPoolOf } from "./address-pools";
import type { Context } from "./context";
import { listRunners } from "./runners";

/**
 * Reservations on any runner of a network. The addresses of a batch are placed one by one, each as if those before it were held already:
 * `mostFree` levels the runners, `packed` fills one after the other, and `spread` uses as many as possible. So the workers of a distributed
 * job are where its placement says, and either all of them have an address or none.
 */
export interface AnyRunnerRequest {
  network: string;
  placement: Placement;
  count: number;
  ip?: bigint | undefined;
  /** A container that has an address in the network keeps its runner. */
  by?: string | undefined;
}

type PlacedCandidate = Candidate & { place: AddressPool };

export async function claimOnAnyRunner(
  { pool }: Pick<Context, "pool">,
  request: AnyRunnerRequest,
  toRequest: (place: AddressPool, index: number) => Request,
): Promise<Lease[]> {
  const { network, placement, count } = request;
  const candidates = await readCandidates(pool, request);
  /** How many addresses runners have left that turned out to be full. */
  const room = new Map<string, number>();
  for (let attempt = 1; ; attempt++) {
    const places = distribute(placement, candidates, count, room);
    if (places.length < count) throw noRoomError(network, places.length, count);
    try {
      return await pool.claim(places.map(toRequest));
    } catch (error) {
      if (!isOverlayError(error, "POOL_EXHAUSTED") || attempt > candidates.length + SPARE_ATTEMPTS) throw error;
    }
    await limitRoom(pool, places, room);
  }
}

/** Each failed attempt finds a full runner, unless other processes change the pools at the same time. */
const SPARE_ATTEMPTS = 10;

async function readCandidates(pool: Ipam, { network, ip, by }: AnyRunnerRequest): Promise<PlacedCandidate[]> {
  const runners = new Map((await listRunners(pool, network)).map((runner) => [runner.pool, runner]));
  const request = { network, ip: ip === undefined ? undefined : formatIp(ip) };
  const held = by === undefined ? undefined : await pool.find({ name: userLeaseName(network, by) });
  const found = (await findCandidates(pool, request)).flatMap((candidate) => {
    const runner = runners.get(candidate.spec.name);
    if (ip === undefined && isCordoned(candidate.spec)) return [];
    const mayBe = runner && (held === undefined || held.pool === runner.pool);
    return mayBe ? [{ ...candidate, place: addressPoolOf(runner) }] : [];
  });
  if (found.length > 0) return found;
  if (ip !== undefined) throw noRunnerError(request);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `Network ${network} has no runner that takes new reservations.`,
    "Add one with a RunnerSubnet, or take `cordon` from one.",
  );
}

/** The place of each address; fewer than `count` if there is no room for more. */
function distribute(
  placement: Placement,
  candidates: PlacedCandidate[],
  count: number,
  room: Map<string, number>,
): AddressPool[] {
  const open = candidates.map((candidate) => ({ ...candidate, left: room.get(candidate.place.pool) ?? Infinity }));
  const places: AddressPool[] = [];
  while (places.length < count) {
    const best = pickRunner(
      placement,
      open.filter(({ left }) => left > 0),
    );
    if (!best) break;
    best.left--;
    best.usage = best.usage && withOneMore(best.usage, best.place);
    places.push(best.place);
  }
  return places;
}

const withOneMore = (usage: Usage, { runner }: AddressPool): Usage => ({
  ...usage,
  held: usage.held + BigInt(runner!.layouts.length),
  reserved: usage.reserved + 1,
});

/** After a claim has failed: how many addresses each of these runners can give, where that is less than it was asked for. */
async function limitRoom(pool: Ipam, places: AddressPool[], room: Map<string, number>): Promise<void> {
  for (const place of new Set(places)) {
    const asked = places.filter((each) => each === place).length;
    const left = await countRoom(pool, place, asked);
    if (left < asked) room.set(place.pool, left);
    else if (asked === places.length) room.set(place.pool, asked - 1); // no other runner can have failed
  }
}

/** Up to `most` addresses of the family that has the fewest. Quarantined ones count: a full pool gives them out. */
async function countRoom(pool: Ipam, { pool: name, runner }: AddressPool, most: number): Promise<number> {
  const quarantined = (await findUsage(pool, name))?.quarantined ?? 0;
  let least = most;
  for (const { range } of runner!.layouts) {
    const free = await pool.freeRanges(name, { range, limit: most });
    const values = free.reduce((sum, { first, last }) => sum + last - first + 1n, BigInt(quarantined));
    if (values < BigInt(least)) least = Number(values);
  }
  return least;
}

const noRoomError = (network: string, room: number, count: number): OverlayError =>
  new OverlayError(
    "POOL_EXHAUSTED",
    count === 1
      ? `No address is free on any runner of network ${network}.`
      : `Network ${network} has room for ${room} of the ${count} addresses that were requested.`,
    "Release what is no longer needed, or add a runner.",
  );
