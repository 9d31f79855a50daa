import { randomBytes } from "node:crypto";
import { parseIp } from "../provider/addressing/ip";
import { OverlayError } from "../provider/errors";
import type { Ipam } from "../provider/ipam";
import { listSpecs } from "../provider/ipam/interface";
import { DEFAULT_SPACE } from "../provider/pool-names";
import { useAddress } from "../provider/reservations";
import { overlayNetwork } from "../provider/resources/overlay-network";
import { buildRequiredLease, type ExportedResource } from "./stack-export";

/** `overlayctl serve --demo`: a network with two runners, on hosts that do not exist, to try the service without a stack. */

const NETWORK = "training";
const RUNNERS = ["node1", "node2"];
/** An address that a container has. */
const USED = "10.128.64.10";

/** Fills an empty store; a store that has the demo already stays as it is. */
export async function addDemo(pool: Ipam): Promise<void> {
  const names = (await listSpecs(pool)).map(({ name }) => name);
  const other = names.find((name) => name !== DEFAULT_SPACE);
  const isThere = names.includes(DEFAULT_SPACE) && (await pool.find({ pool: DEFAULT_SPACE, owner: ownerOf(NETWORK) }));
  if (isThere) return;
  if (other !== undefined) throw notEmptyError(other);
  const { conflicts } = await pool.importLeases(demoResources().map(buildRequiredLease), { dryRun: false });
  if (conflicts.length > 0) throw conflicts[0]!.error;
  await useAddress({ pool }, { network: NETWORK, runner: RUNNERS[0], ip: parseIp(USED), by: "demo" });
}

/** Addresses for documentation (RFC 5737). */
function demoResources(): ExportedResource[] {
  const hubConnection = { host: "192.0.2.1" };
  const network = overlayNetwork.inputs.parse({ networkName: NETWORK, hubConnection });
  const runners = RUNNERS.map((runnerName, i) =>
    resource("RunnerSubnet", runnerName, {
      network,
      runnerName,
      runnerId: i + 1,
      hubConnection,
      connection: { host: `192.0.2.${11 + i}` },
    }),
  );
  return [resource("OverlayNetwork", NETWORK, network), ...runners];
}

const ownerOf = (name: string): string => `overlayctl/demo/${name}`;

function resource(type: string, name: string, props: object): ExportedResource {
  const uid = randomBytes(8).toString("hex");
  const leaseId = `${uid}.${randomBytes(8).toString("hex")}`;
  return { source: "the demo", type, props: { ...props, uid, leaseId, owner: ownerOf(name) } };
}

const notEmptyError = (name: string): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `The store has pools already, such as ${name}, so no demo network is added.`,
    "Use a store of its own: --store sqlite:demo.db. Without --demo, the service serves this one.",
  );
