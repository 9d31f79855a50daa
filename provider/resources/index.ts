import type { Definition } from "../resource";
import { ipPool } from "./ip-pool";
import { ipReservation } from "./ip-reservation";
import { overlayNetwork } from "./overlay-network";
import { runnerSubnet } from "./runner-subnet";
import { staticIp } from "./static-ip";

/** All resources. A new one is its file, a line here, a test and an example. */
export const resources: Definition[] = [
  overlayNetwork,
  runnerSubnet,
  ipPool,
  ipReservation,
  staticIp,
] as unknown as Definition[];

export function resourceOf(type: string): Definition {
  const found = resources.find((resource) => resource.type === type);
  if (!found) throw new Error(`there is no resource type ${type}`);
  return found;
}
