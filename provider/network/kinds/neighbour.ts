import { type Neighbour, oppositeStep } from "../model/items";
import type { ItemKind } from "./kind";

/** An address for which the host answers on a device. The kernel answers only while it forwards, and for what it routes to another device. */
export const neighbourKind: ItemKind<Neighbour> = {
  isUnique: true,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["neighbours"], after: ["neighbours"] },
  readBack: () => ({}),
  disappearsWith: ({ dev }) => dev,
  compare: (item, { proxies }) => (proxies.has(proxyKey(item)) ? [] : undefined),
  render({ verb, item: { ip, dev } }, parts) {
    parts.ip.push(`neigh ${verb === "remove" ? "del" : "replace"} proxy ${ip} dev ${dev}`);
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert: (step) => [oppositeStep(step)],
  removeFrom: ({ proxies }, item) => void proxies.delete(proxyKey(item)),
  inspectCommands: ["ip neigh show proxy"],
};

/** As in `Facts.proxies`. */
const proxyKey = ({ ip, dev }: Neighbour): string => `${ip} ${dev}`;
