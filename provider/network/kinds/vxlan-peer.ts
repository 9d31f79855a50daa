import type { Facts } from "../model/facts";
import { mismatch, type VxlanPeer } from "../model/items";
import type { ItemKind } from "./kind";

/**
 * A peer of a VXLAN device that has several. Such a device learns: the kernel drops frames with the MAC of a permanent entry that come
 * from another host, and an entry that it has learned has no effect, because nothing is sent to MACs without a peer.
 */
export const vxlanPeerKind: ItemKind<VxlanPeer> = {
  isUnique: true,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["fdb", "neighbours"], after: ["fdb", "neighbours"] },
  readBack: ({ dev }) => ({ devices: [dev] }),
  disappearsWith: ({ dev }) => dev,
  compare(item, facts) {
    const destination = destinationOf(item, facts);
    const mac = facts.neighbours.get(neighbourKey(item));
    if (destination === undefined && mac === undefined) return undefined;
    return [...mismatch("FDB entry", destination, `dst ${item.remote}`), ...mismatch("neighbour entry", mac, item.mac)];
  },
  render({ verb, item: { dev, mac, ip, remote } }, parts) {
    if (verb === "remove") {
      // One of the two may be missing. That both are gone is read back.
      parts.late.push(`{ ip neigh del ${ip} dev ${dev} 2>/dev/null || :; }`);
      parts.late.push(`{ bridge fdb del ${mac} dev ${dev} 2>/dev/null || :; }`);
      return;
    }
    parts.shell.push(`bridge fdb replace ${mac} dev ${dev} dst ${remote}`);
    parts.ip.push(`neigh replace ${ip} lladdr ${mac} dev ${dev} nud permanent`);
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert({ item }, before) {
    const [, remote] = /^dst (\S+)$/.exec(destinationOf(item, before) ?? "") ?? [];
    return [remote === undefined ? { verb: "remove", item } : { verb: "add", item: { ...item, remote } }];
  },
  removeFrom({ links, neighbours }, item) {
    neighbours.delete(neighbourKey(item));
    const link = links.get(item.dev);
    if (link?.fdb) link.fdb = link.fdb.filter(({ mac }) => mac !== item.mac);
  },
  inspectCommands: ["bridge fdb show", "ip neigh show nud permanent"],
};

const destinationOf = ({ dev, mac }: VxlanPeer, { links }: Facts): string | undefined =>
  links.get(dev)?.fdb?.find((entry) => entry.mac === mac)?.destination;

/** As in `Facts.neighbours`. */
const neighbourKey = ({ ip, dev }: VxlanPeer): string => `${ip} ${dev}`;
