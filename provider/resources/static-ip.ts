import { z } from "zod";
import { type Layout, layoutOf, runnerLayout } from "../addressing/layout";
import { type Family, familyBlock, familyOf, fromLine, toLine } from "../addressing/line";
import { labelOf } from "../addressing/names";
import { rangeOf } from "../addressing/ranges";
import { OverlayError } from "../errors";
import { planCarrier, planReturn, type StaticAddress } from "../network/static-ip";
import { sameStack } from "../owner";
import type { Lease, Pool } from "../pool/types";
import { defineResource, type Impossible, type Part } from "../resource";
import { address, connection, labels, resourceName } from "./inputs";
import { type PoolSettings, poolNamed, poolReference, poolSettings } from "./ip-pool";

const port = z.number().int().min(1).max(65535);

const forward = z
  .strictObject({
    protocol: z.enum(["tcp", "udp", "sctp"]).default("tcp").describe("Transport protocol."),
    port: port.describe("Port of the static address."),
    to: address.describe("Where it leads: an address, such as the `ip` of an IPReservation."),
    toPort: port.optional().describe("Port there. Default: the same."),
    name: z.string().max(63).optional().describe("A word for people, such as `https`."),
  })
  .meta({ id: "Forward" });

/** The machine that carries it: a network's hub, or one of its runners. */
const attachment = z
  .object({
    networkName: resourceName.describe("Name of the network."),
    runnerName: resourceName.optional().describe("Name of the runner; none: the network's hub."),
    subnets: z
      .union([z.string(), z.array(z.string())])
      .describe("Layouts of the network, or the ranges of the runner's workloads."),
    bridgeName: z.string().optional().describe("Bridge on the network's runners."),
  })
  .meta({ id: "Attachment" });

const runner = z
  .object({
    networkName: resourceName.describe("Name of the runner's network."),
    runnerName: resourceName.describe("Name of the runner."),
    subnets: z.array(z.string()).describe("The ranges of its workloads."),
  })
  .meta({ id: "ReturnRunner" });

const inputs = z.strictObject({
  pool: poolSettings.describe("Where the address comes from: an IPPool, or the name of one in another stack."),
  staticIpName: resourceName.describe("Stands in `names` where there is no sharing key. Default: the resource's name."),
  ip: address.optional().describe("A wish for this address. Default: the pool picks."),
  attach: attachment.describe(
    "The machine that carries it: an OverlayNetwork (its hub) or a RunnerSubnet; from another stack by name, `NETWORK` or `NETWORK/RUNNER`. A change moves it.",
  ),
  connection: connection.describe("How SSH reaches that machine. Default: as `attach` says, where that is a resource."),
  sharingKey: z
    .string()
    .min(1)
    .max(253)
    .optional()
    .describe(
      "Resources of one tenant with the same key share one address, each with ports of its own. None: the address is exclusive.",
    ),
  onConflict: z
    .enum(["fail", "take"])
    .default("fail")
    .describe("Where the address or a port is held by somebody else of the same tenant: fail, or take it away."),
  forwards: z.array(forward).default([]).describe("What the address passes on, port by port."),
  preserveClientIp: z
    .boolean()
    .default(false)
    .describe(
      "Show workloads the addresses of clients outside, instead of the carrier's. On a hub it needs `runners`.",
    ),
  runners: z
    .array(runner)
    .default([])
    .describe(
      "With preserveClientIp on a hub: the runners that the forwards lead to, which send replies back to the hub.",
    ),
  runnerConnections: z
    .array(connection)
    .default([])
    .describe("How SSH reaches `runners`, in their order. Default: as they say, where they are resources."),
  persist: z
    .boolean()
    .default(true)
    .describe("The machines put it back by themselves after a boot, with a systemd unit."),
  labels,
});

type Inputs = z.output<typeof inputs>;

const computed = z.object({
  ip: z.string().describe("The address."),
  names: z
    .array(z.string())
    .optional()
    .describe("A name for each forward, `KEY-PROTOCOL-PORT`, the same in every deployment."),
});

type StaticProps = Inputs & z.output<typeof computed>;

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
        pool: (name) => `network/${name}`,
      },
      {
        to: "RunnerSubnet",
        passes: ["networkName", "runnerName", "subnets"],
        fills: { connection: "connection" },
        pool: (name) => `runner/${name}`,
      },
    ],
    runners: {
      to: "RunnerSubnet",
      passes: ["networkName", "runnerName", "subnets"],
      fills: { runnerConnections: "connection" },
      pool: (name) => `runner/${name}`,
      many: true,
    },
  },
  replaceOn: ["pool.poolName", "ip"],
  createFirst: true,
  late: ["connection", "runnerConnections", "forwards", "labels"],
  quiet: ["connection", "runnerConnections", "labels", "onConflict", "sharingKey", "staticIpName", "names"],

  id: ({ ip, staticIpName }) => `${ip}/${staticIpName}`,
  request: ({ pool, ip, sharingKey, onConflict, forwards = [], labels }) => ({
    pool: poolNamed(pool.poolName),
    ...(ip !== undefined && { want: [{ first: toLine(ip), last: toLine(ip) }] }),
    ...(ip === undefined && familyWanted(pool, forwards)),
    ...(sharingKey !== undefined && { sharingKey }),
    ports: forwards.map(({ protocol, port }) => ({ protocol, port })),
    ...(pool.tenant && { tenant: pool.tenant }),
    ...(onConflict === "take" && { takes: true }),
    ...(labels && { labels }),
  }),
  values: ({ sharingKey, staticIpName, forwards }, [extent]) => ({
    ip: fromLine(extent!.first),
    ...(forwards && {
      names: forwards.map(({ protocol, port }) => `${labelOf(sharingKey ?? staticIpName)}-${protocol}-${port}`),
    }),
  }),
  held: ({ ip }) => [{ first: toLine(ip), last: toLine(ip) }],
  notes: ({ attach }) => ({ attach: carrierName(attach) }),
  refuse: otherFamily,
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

/** Who else has a part in the address. */
async function fellowsOf(pool: Pool, name: string, ip: string, owner: string): Promise<Lease[]> {
  const [value, leases] = [toLine(ip), await pool.leases(name, { after: toLine(ip) - 1n, limit: 1 })];
  return leases.filter(
    (lease) => lease.owner !== owner && lease.state !== "resting" && lease.extents.some(({ first }) => first === value),
  );
}

const carrierName = ({ networkName, runnerName }: Inputs["attach"]): string =>
  runnerName ? `${networkName}/${runnerName}` : networkName;

/**
 * One address cannot be on two machines. A neighbour in the same stack may be about to move, too: Pulumi tells each of
 * them by itself.
 */
function isElsewhere(fellow: Lease, { attach }: Inputs, owner: string): boolean {
  const moves = fellow.state !== "offered" && sameStack(fellow.owner, owner);
  return !moves && (carrierOf(fellow) ?? carrierName(attach)) !== carrierName(attach);
}

const carrierOf = ({ data }: Lease): string | undefined => (data as { attach?: string } | undefined)?.attach;

const elsewhere = ({ ip, attach }: StaticProps, fellow: Lease): OverlayError =>
  new OverlayError(
    "SHARING_CONFLICT",
    `${ip} is shared with ${fellow.owner}, which has it on ${carrierOf(fellow)}; this one would have it on ${carrierName(attach)}.`,
    "Attach both to the same machine, or use another sharing key.",
  ).about("attach");

const familyOfText = (text: string): Family => familyOf(toLine(text.split("/")[0]!));

function otherFamily({ ip, forwards = [] }: StaticProps): void {
  const wrong = forwards.findIndex(({ to }) => familyOfText(to) !== familyOfText(ip));
  if (wrong < 0) return;
  throw new OverlayError(
    "INPUT_INVALID",
    `forwards.${wrong}.to is ${forwards[wrong]!.to}, but ${ip} is an IPv${familyOfText(ip)} address.`,
    "Give each address family a static address of its own.",
  ).about(`forwards.${wrong}.to`);
}

/** Only a pool with both families leaves it open which of them is meant; the workloads tell. */
function familyWanted({ ranges }: PoolSettings, forwards: Inputs["forwards"]) {
  const families = new Set(ranges.map((text) => familyOf(rangeOf(text)!.first)));
  return families.size === 2 && forwards[0] ? { within: familyBlock(familyOfText(forwards[0].to)) } : {};
}

const layoutsOf = ({ subnets }: Inputs["attach"]): Layout[] => [subnets].flat().map(layoutOf);

const staticAddress = ({ ip, forwards, attach, preserveClientIp }: StaticProps): StaticAddress => ({
  ip,
  forwards: forwards.map(withPort),
  preserveClientIp,
  cidrs: attach.runnerName ? [attach.subnets].flat() : layoutsOf(attach).map(({ cidr }) => cidr),
});

const withPort = ({ protocol, port, to, toPort = port }: z.output<typeof forward>) => ({ protocol, port, to, toPort });

const isIn = (ip: string, cidr: string): boolean => {
  const [point, block] = [toLine(ip), rangeOf(cidr)!];
  return block.first <= point && point <= block.last;
};

/** The runners that lead replies back to the hub, where that shows clients to workloads. A runner does so by itself. */
function returnRunners({ ip, attach, runners, runnerConnections, preserveClientIp, forwards }: StaticProps) {
  if (!preserveClientIp || attach.runnerName) return [];
  const layout = layoutsOf(attach).find(({ family }) => family === familyOfText(ip))!;
  return runners.flatMap(({ runnerName, subnets }, i) => {
    const subnet = subnets.find((text) => familyOfText(text) === layout.family)!;
    const led = forwards.filter(({ to }) => isIn(to, subnet)).map(withPort);
    const id = Number((rangeOf(subnet)!.first - layout.base) >> BigInt(layout.subnetBits));
    const { hubIp } = runnerLayout(layout, id);
    const path = { networkName: attach.networkName, cidr: layout.cidr, subnet, hubIp, bridge: attach.bridgeName! };
    return led.length > 0 ? [{ role: `runner/${runnerName}`, connection: runnerConnections[i]!, path, led }] : [];
  });
}

function* impossible(inputs: Inputs): Generator<Impossible> {
  const { attach, forwards, runners, runnerConnections, preserveClientIp } = inputs;
  const seen = new Set<string>();
  for (const [i, { protocol, port }] of forwards.entries()) {
    if (seen.has(`${protocol}/${port}`))
      yield { property: `forwards.${i}.port`, reason: `is there twice: ${protocol}/${port}` };
    seen.add(`${protocol}/${port}`);
  }
  for (const [i, { networkName, runnerName }] of runners.entries()) {
    if (networkName !== attach.networkName)
      yield {
        property: `runners.${i}`,
        reason: `is ${runnerName} of network ${networkName}, not of ${attach.networkName}`,
      };
  }
  if (runnerConnections.length !== runners.length)
    yield { property: "runnerConnections", reason: `must be one for each of ${runners.length} runners` };
  if (preserveClientIp) yield* noWayBack(inputs);
}

function* noWayBack({ attach, forwards, runners }: Inputs): Generator<Impossible> {
  const reached = attach.runnerName ? [attach.subnets].flat() : runners.flatMap(({ subnets }) => subnets);
  const where = attach.runnerName ? `runner ${attach.runnerName}, which carries the address` : "one of `runners`";
  for (const [i, { to }] of forwards.entries()) {
    if (!reached.some((subnet) => isIn(to, subnet)))
      yield {
        property: `forwards.${i}.to`,
        reason: `must be a workload of ${where}: only from there do replies to clients lead back`,
      };
  }
}
