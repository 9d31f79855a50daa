import { OverlayError } from "../errors";
import type { Json, Lease } from "../pool/types";
import { networkPool, runnerOfPool } from "../pool-names";
import { DEFAULT_TTL } from "../resources/ip-reservation";
import { type AddressPool, addressPoolOf, openRunnerPool, requireNamedPool } from "./address-pools";
import { claimOnAnyRunner } from "./any-runner";
import { type AddressClaim, buildRequest, throwExplained } from "./claim";
import type { Context } from "./context";
import type { ReserveInput } from "./inputs";
import { claimOnce, describeRequest, type Repeatable, toRepeatable } from "./repeat";
import { findRunner } from "./runners";

export interface Reservation {
  lease: Lease;
  token: string;
  /** Of the runner's subnets, one for each address family. */
  gateways: string[];
}

/** Holds an address until it is used, and signs a token for it. The same container, owner or key gets the same lease again. */
export const reserve = async (context: Context, input: Omit<ReserveInput, "count">): Promise<Reservation> =>
  (await reserveMany(context, input))[0]!;

/** `count` addresses in one transaction: all of them, or none. */
export async function reserveMany(context: Context, input: ReserveInput): Promise<Reservation[]> {
  rejectContradictions(input);
  const place = isForAnyRunner(input) ? undefined : await requireNamedPool(context, input);
  const request = describeRequest(place?.pool ?? networkPool(input.network!), input);
  const repeatable = toRepeatable(context, input, request);
  const claim = () => claimReservations(context, place, input, repeatable).catch(throwExplained(input.by));
  return signAll(context, place, repeatable ? await claimOnce(context, repeatable, claim) : await claim());
}

const isForAnyRunner = ({ anyRunner, placement }: ReserveInput): boolean =>
  anyRunner === true || placement !== undefined;

function rejectContradictions(input: ReserveInput): void {
  const { network, runner, pool, by, owner, count = 1, ip, port } = input;
  const given = Object.entries({ container: by, ip, port }).find(([, value]) => value !== undefined)?.[0];
  if (isForAnyRunner(input) && (network === undefined || runner !== undefined || pool !== undefined))
    throw new OverlayError(
      "INPUT_INVALID",
      "Any runner of which network?",
      "Give network, and neither runner nor pool.",
    );
  if (count > 1 && given !== undefined)
    throw new OverlayError(
      "INPUT_INVALID",
      `A request with ${given} is for one address, and ${count} are requested.`,
      `Leave out ${given}; owner or key names a request for several.`,
    );
  if (by !== undefined && owner !== undefined)
    throw new OverlayError("INPUT_INVALID", "Both container and owner are given.", "Give one of them.");
}

/** `place`: undefined for any runner. */
async function claimReservations(
  context: Context,
  place: AddressPool | undefined,
  input: ReserveInput,
  repeatable: Repeatable | undefined,
): Promise<Lease[]> {
  const { count = 1, placement = "mostFree" } = input;
  const toRequest = (at: AddressPool, index: number) => buildRequest(context, at, claimAt(input, index, repeatable));
  if (!place) return claimOnAnyRunner(context, { ...input, network: input.network!, placement, count }, toRequest);
  await openRunnerPool(context.pool, place);
  return context.pool.claimAll(Array.from({ length: count }, (_, i) => toRequest(place, i)));
}

function claimAt(input: ReserveInput, index: number, repeatable: Repeatable | undefined): AddressClaim {
  const { ip, port, vm, by, owner, count = 1, ttl = vm ? DEFAULT_TTL.vm : DEFAULT_TTL.container } = input;
  return {
    ...{ ip, port, vm, by, ttl },
    owner: owner === undefined || count === 1 ? owner : `${owner} (${index + 1} of ${count})`,
    ...(repeatable && { names: [repeatable.names[index]!], data: { request: repeatable.request as unknown as Json } }),
  };
}

async function signAll(context: Context, place: AddressPool | undefined, leases: Lease[]): Promise<Reservation[]> {
  const tokens = await context.pool.signTokens(leases);
  const gateways = new Map(place && [[place.pool, gatewaysOf(place)]]);
  for (const { pool } of leases) if (!gateways.has(pool)) gateways.set(pool, await findGateways(context, pool));
  return leases.map((lease, i) => ({ lease, token: tokens[i]!, gateways: gateways.get(lease.pool)! }));
}

async function findGateways({ pool }: Context, name: string): Promise<string[]> {
  const { network, runner } = runnerOfPool(name)!;
  return gatewaysOf(addressPoolOf(await findRunner(pool, network, runner)));
}

export const gatewaysOf = ({ runner }: AddressPool): string[] => runner?.layouts.map(({ gateway }) => gateway) ?? [];
