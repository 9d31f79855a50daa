import { z } from "zod";
import { formatIp, parseIp } from "../addressing/ip";
import { dnsLabel } from "../addressing/layout";
import { OverlayError } from "../errors";
import { planCarrier, planReturn } from "../network/plan/static-ip";
import { sameStack } from "../owner";
import type { Lease, Pool } from "../pool/types";
import { networkPool, poolNamed, runnerPool } from "../pool-names";
import { defineResource, type TargetHost } from "../resource";
import { storedRunner } from "./addresses";
import { poolChange, poolReference } from "./ip-pool";
import { storedNetwork } from "./overlay-network";
import { crossFieldErrors, familyRequest, rejectOtherFamily, returnRunners, staticAddress } from "./static-ip-forwards";
import { computed, type Inputs, inputs, type StaticProps } from "./static-ip-inputs";

export const staticIp = defineResource({
  type: "StaticIP",
  description: "An address from a pool, carried by a hub or a runner, that passes ports on to workloads.",
  inputs,
  computed,
  crossFieldErrors,
  outputs: z.object({
    sharedWith: z.array(z.string()).describe("Who else has forwards on the address."),
  }),
  nameInput: "staticIpName",
  secrets: ["connection", "runnerConnections"],
  references: {
    pool: poolReference,
    attach: [
      {
        to: "OverlayNetwork",
        passes: ["networkName", "subnets", "bridgeName"],
        fills: { connection: "hubConnection" },
        pool: networkPool,
        stored: storedNetwork,
      },
      {
        to: "RunnerSubnet",
        passes: ["networkName", "runnerName", "subnets"],
        fills: { connection: "connection" },
        pool: runnerPool,
        stored: storedRunner,
      },
    ],
    runners: {
      to: "RunnerSubnet",
      passes: ["networkName", "runnerName", "subnets"],
      fills: { runnerConnections: "connection" },
      pool: runnerPool,
      stored: storedRunner,
      many: true,
    },
  },
  replaceOn: ["pool.poolName", "ip"],
  createBeforeDelete: true,
  mayBeUnknown: ["connection", "runnerConnections", "forwards", "labels"],

  id: ({ ip, staticIpName }) => `${ip}/${staticIpName}`,
  request: ({ pool, tenant, ip, sharingKey, onConflict, onPortConflict, forwards = [], labels }) => ({
    pool: poolNamed(pool.poolName),
    ...(ip !== undefined && { want: [{ first: parseIp(ip), last: parseIp(ip) }] }),
    ...(ip === undefined && familyRequest(pool, forwards)),
    ...(sharingKey !== undefined && { sharingKey }),
    ports: forwards.map(({ protocol, port }) => ({ protocol, port })),
    ...(tenant && { tenant }),
    ...(onConflict === "take" && { takes: true }),
    ...(onPortConflict === "anotherAddress" && { onPortConflict }),
    ...(labels && { labels }),
  }),
  values: ({ sharingKey, staticIpName, forwards }, [extent]) => ({
    ip: formatIp(extent!.first),
    ...(forwards && {
      names: forwards.map(({ protocol, port }) => `${dnsLabel(sharingKey ?? staticIpName)}-${protocol}-${port}`),
    }),
  }),
  extentsFromProps: ({ ip }) => [{ first: parseIp(ip), last: parseIp(ip) }],
  leaseData: ({ attach }) => ({ attach: carrierName(attach) }),
  validate: async (props, { owner, pool }) => {
    rejectOtherFamily(props);
    const coHolders = await findCoHolders(pool, poolNamed(props.pool.poolName), props.ip, owner);
    const other = coHolders.find((lease) => isElsewhere(lease, props, owner));
    if (other) throw carrierConflict(props, other);
  },
  leaseOutputs: async ({ ip }, { pool: name, owner }, { pool }) => {
    const coHolders = (await findCoHolders(pool, name, ip, owner)).filter(({ state }) => state !== "offered");
    return { sharedWith: [...new Set(coHolders.map((lease) => lease.owner))].sort() };
  },
  sourcePool: {
    changeInRun: ({ pool }, spec) => poolChange(pool, spec),
    ignoreChanges: ["pool.ranges"],
  },
  host: {
    targets: (props) => [
      { role: "carrier", connection: props.connection, carries: props.ip },
      ...returnRunners(props).map(({ role, connection }): TargetHost => ({ role, connection, toward: props.ip })),
    ],
    plan: (props, machines) => {
      const runners = returnRunners(props);
      return {
        carrier: planCarrier(
          staticAddress(props),
          machines.carrier!,
          runners.map(({ role }) => machines[role]!),
        ),
        ...Object.fromEntries(runners.map(({ role, path, forwarded }) => [role, planReturn(path, forwarded)])),
      };
    },
    unaffectedBy: [
      "connection",
      "runnerConnections",
      "labels",
      "tenant",
      "onConflict",
      "onPortConflict",
      "sharingKey",
      "staticIpName",
      "names",
    ],
    persist: ({ persist }) => persist,
  },
});

/** Other leases that share the address. */
async function findCoHolders(pool: Pool, name: string, ip: string, owner: string): Promise<Lease[]> {
  const [value, leases] = [parseIp(ip), await pool.leases(name, { after: parseIp(ip) - 1n, limit: 1 })];
  return leases.filter(
    (lease) => lease.owner !== owner && lease.state !== "resting" && lease.extents.some(({ first }) => first === value),
  );
}

const carrierName = ({ networkName, runnerName }: Inputs["attach"]): string =>
  runnerName ? `${networkName}/${runnerName}` : networkName;

/**
 * Whether a co-holder has the address on another host: one address cannot be on two. Resources of the same stack may move together,
 * and Pulumi checks them one by one, so they are not compared. A lease without the same key does not share the address: it is about
 * to end.
 */
function isElsewhere(coHolder: Lease, { attach, sharingKey }: Inputs, owner: string): boolean {
  if (coHolder.sharingKey === undefined || coHolder.sharingKey !== sharingKey) return false;
  const mayMove = coHolder.state !== "offered" && sameStack(coHolder.owner, owner);
  return !mayMove && (carrierOf(coHolder) ?? carrierName(attach)) !== carrierName(attach);
}

const carrierOf = ({ data }: Lease): string | undefined => carrierData.safeParse(data).data?.attach;

const carrierData = z.object({ attach: z.string().regex(/^[A-Za-z0-9._/-]{1,130}$/) });

const carrierConflict = ({ ip, attach }: StaticProps, coHolder: Lease): OverlayError =>
  new OverlayError(
    "SHARING_CONFLICT",
    `${ip} is shared with ${coHolder.owner}, which has it on ${carrierOf(coHolder)}; this one would have it on ${carrierName(attach)}.`,
    "Attach both to the same machine, or use another sharing key.",
  ).about("attach");
