import { isPassRule } from "../../../provider/network/kinds/firewall";
import type { Facts } from "../../../provider/network/model/facts";
import type { DesiredState, HostRecord, Item, Link } from "../../../provider/network/model/items";
import { recordPath } from "../../../provider/network/model/record";
import { parseFacts } from "../../../provider/network/read/facts";

/** The facts of a host that has exactly these desired states. */
export function hostWith(states: DesiredState[]): Facts {
  const facts: Facts = { ...parseFacts(""), records: states.map(({ record, items }) => ({ ...record, items })) };
  facts.sysctls.set("net.ipv4.ip_forward", "0");
  for (const chain of ["4 filter INPUT", "4 filter FORWARD", "4 nat POSTROUTING"]) facts.chains.set(chain, []);
  for (const item of states.flatMap(({ items }) => items)) put(facts, item);
  return facts;
}

/** Files in the records' folder, as the script for facts prints them. */
export const recordFiles = (files: Record<string, string>): string =>
  [
    "@@ records",
    ...Object.keys(files),
    "",
    ...Object.entries(files).flatMap(([file, text]) =>
      text === "" ? [] : text.split("\n").map((line) => `${file}:${line}`),
    ),
  ].join("\n");

/** One record in that form; empty for a record without items. */
export const recordPart = (record: HostRecord): string =>
  record.items.length > 0 ? recordFiles({ [recordPath(record)]: JSON.stringify(record) }) : "";

function put(facts: Facts, item: Item): void {
  const chain = (name: string): string[] => {
    const key = "table" in item ? `${item.family} ${item.table} ${name}` : "";
    if (!facts.chains.has(key)) facts.chains.set(key, []);
    return facts.chains.get(key)!;
  };
  if (item.kind === "sysctl") facts.sysctls.set(item.key, item.value);
  if (item.kind === "link") facts.links.set(item.name, linkFact(item));
  if (item.kind === "address") facts.addresses.add(`${item.address} ${item.dev}`);
  if (item.kind === "route") facts.routes.push({ ...item, protocol: "183", unreachable: !item.via });
  if (item.kind === "chain") chain(item.chain);
  if (item.kind === "rule" && !chain(item.chain).includes(item.rule))
    chain(item.chain)[isPassRule(item.rule) ? "unshift" : "push"](item.rule);
  if (item.kind === "jump" && !chain(item.from).includes(`-j ${item.chain}`))
    chain(item.from).unshift(`-j ${item.chain}`);
}

const linkFact = (link: Link) => ({
  type: link.type === "anchor" ? "bridge" : link.type,
  mac: link.mac ?? "",
  mtu: link.mtu ?? 1500,
  up: true,
  ...(link.master && { master: link.master }),
  ...(link.vxlan && { vxlan: { ...link.vxlan, learning: false } }),
});
