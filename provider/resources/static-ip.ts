import { z } from "zod";
import { formatIp, parseIp } from "../addressing/ip";
import { dnsLabel } from "../addressing/names";
import { planCarrier, planReturn } from "../network/plan/static-ip";
import { networkPool, poolNamed, runnerPool } from "../pool-names";
import { defineResource, type Part } from "../resource";
import { storedRunner } from "./addresses";
import { poolChange, poolReference } from "./ip-pool";
import { storedNetwork } from "./overlay-network";
import { computed, inputs } from "./static-ip-inputs";
import { familyWanted, impossible, refuseOtherFamily, returnRunners, staticAddress } from "./static-ip-paths";
import { carrierName, elsewhere, fellowsOf, isElsewhere } from "./static-ip-sharers";

export const staticIp = defineResource({
  type: "StaticIP",
  description: "An address from a pool, carried by a hub or a runner, that passes ports on to workloads.",
  inputs,
  computed,
  impossible,
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
  unaffectedBy: ["pool.ranges"],
  poolChange: ({ pool }, spec) => poolChange(pool, spec),
  createFirst: true,
  late: ["connection", "runnerConnections", "forwards", "labels"],
  quiet: [
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

  id: ({ ip, staticIpName }) => `${ip}/${staticIpName}`,
  request: ({ pool, tenant, ip, sharingKey, onConflict, onPortConflict, forwards = [], labels }) => ({
    pool: poolNamed(pool.poolName),
    ...(ip !== undefined && { want: [{ first: parseIp(ip), last: parseIp(ip) }] }),
    ...(ip === undefined && familyWanted(pool, forwards)),
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
  held: ({ ip }) => [{ first: parseIp(ip), last: parseIp(ip) }],
  notes: ({ attach }) => ({ attach: carrierName(attach) }),
  refuse: refuseOtherFamily,
  beside: async (props, owner, pool) => {
    const fellows = await fellowsOf(pool, poolNamed(props.pool.poolName), props.ip, owner);
    const other = fellows.find((lease) => isElsewhere(lease, props, owner));
    if (other) throw elsewhere(props, other);
  },

  persist: ({ persist }) => persist,
  hosts: (props) => [
    { role: "carrier", connection: props.connection, carries: props.ip },
    ...returnRunners(props).map(({ role, connection }): Part => ({ role, connection, toward: props.ip })),
  ],
  plan: (props, machines) => {
    const runners = returnRunners(props);
    return {
      carrier: planCarrier(
        staticAddress(props),
        machines.carrier!,
        runners.map(({ role }) => machines[role]!),
      ),
      ...Object.fromEntries(runners.map(({ role, path, led }) => [role, planReturn(path, led)])),
    };
  },
  report: () => ({}),
  tell: async ({ ip }, { pool: name, owner }, { pool }) => {
    const fellows = (await fellowsOf(pool, name, ip, owner)).filter(({ state }) => state !== "offered");
    return { sharedWith: [...new Set(fellows.map((lease) => lease.owner))].sort() };
  },
});
