import { parseLayout } from "../provider/addressing/layout";
import type { Item } from "../provider/network/model/items";
import type { Network, Underlay } from "../provider/network/plan/hub";
import { withLocalRules } from "../provider/network/plan/this-host";
import { parseFacts } from "../provider/network/read/facts";

/** The network that most tests are about, and the underlay of the two hosts of its first tunnel. */
export const training = (changes: Partial<Network> = {}): Network => ({
  networkName: "training",
  tunnel: "vxlan",
  layouts: [parseLayout("10.128.0.0/12/6/14")],
  vniBase: 100,
  vxlanPort: 4789,
  wireguardPort: 51820,
  mtu: 1450,
  masquerade: true,
  devicePrefix: "vxkr",
  bridgeName: "kohaku-overlay",
  hubInterface: "kohaku-host",
  hostAccess: "ping",
  ...changes,
});

export const hub: Underlay = { underlayIp: "192.0.2.1", underlayMtu: 1500 };
export const runner: Underlay = { underlayIp: "192.0.2.11", underlayMtu: 1500 };

/** The items of a plan that apply to a bare host without ip6tables. */
export const onIpv4 = (items: Item[]): Item[] => withLocalRules(items, parseFacts(""));
