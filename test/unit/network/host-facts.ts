import { sha256 } from "../../../provider/network/kinds/file";
import { isPassRule } from "../../../provider/network/kinds/firewall";
import { formatEndpoint } from "../../../provider/network/kinds/wireguard";
import type { DockerNetworkFact, Facts } from "../../../provider/network/model/facts";
import {
  type DesiredState,
  type DockerNetwork,
  type FirewallItem,
  type HostRecord,
  type Item,
  isUnreachable,
  type Link,
  unhandledKind,
  type VxlanPeer,
  type WireguardPeer,
} from "../../../provider/network/model/items";
import { recordPath, unitPath } from "../../../provider/network/model/record";
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
  switch (item.kind) {
    case "sysctl":
      facts.sysctls.set(item.key, item.value);
      facts.savedSysctls.set(item.key, "1");
      return;
    case "link":
      facts.links.set(item.name, linkFact(item));
      return;
    case "key":
      facts.keys.set(item.path, item.publicKey ?? "");
      return;
    case "wgpeer":
      putPeer(facts, item);
      return;
    case "vxpeer":
      putVxlanPeer(facts, item);
      return;
    case "neighbour":
      facts.proxies.add(`${item.ip} ${item.dev}`);
      return;
    case "address":
      facts.addresses.add(`${item.address} ${item.dev}`);
      return;
    case "route":
      facts.routes.push({ ...item, protocol: "183", unreachable: isUnreachable(item) });
      return;
    case "policy":
      facts.policies.add(`${item.family} ${item.from} ${item.mark} ${item.table}`);
      return;
    case "chain":
      rulesOf(facts, item, item.chain);
      return;
    case "rule":
      addRule(rulesOf(facts, item, item.chain), item.rule, isPassRule(item.rule) ? "unshift" : "push");
      return;
    case "jump":
      addRule(rulesOf(facts, item, item.from), `-j ${item.chain}`, "unshift");
      return;
    case "file":
      facts.files.set(item.path, sha256(item.content ?? ""));
      return;
    case "service":
      facts.files.set(unitPath(item.name), sha256(item.unit ?? ""));
      return;
    case "docker":
      facts.docker ??= { isRunning: true, networks: [] };
      facts.docker.networks.push(networkFact(item));
      return;
    case "zone": // there is no firewalld
      return;
    default:
      unhandledKind(item);
  }
}

function putPeer({ links }: Facts, { dev, publicKey, allowedIps, endpoint, keepalive }: WireguardPeer): void {
  const link = links.get(dev) ?? { type: "wireguard", mac: "", mtu: 1420, up: true };
  link.wireguard ??= { publicKey: "", port: 0, peers: new Map() };
  link.wireguard.peers.set(publicKey, {
    allowedIps: [...allowedIps].sort(),
    endpoint: formatEndpoint(endpoint),
    keepalive,
  });
  links.set(dev, link);
}

function putVxlanPeer({ links, neighbours }: Facts, { dev, mac, ip, remote }: VxlanPeer): void {
  const link = links.get(dev) ?? { type: "vxlan", mac: "", mtu: 1450, up: true };
  links.set(dev, { ...link, fdb: [...(link.fdb ?? []), { mac, destination: `dst ${remote}` }] });
  neighbours.set(`${ip} ${dev}`, mac);
}

function rulesOf(facts: Facts, { family, table }: FirewallItem, chain: string): string[] {
  const key = `${family} ${table} ${chain}`;
  if (!facts.chains.has(key)) facts.chains.set(key, []);
  return facts.chains.get(key)!;
}

function addRule(rules: string[], rule: string, add: "push" | "unshift"): void {
  if (!rules.includes(rule)) rules[add](rule);
}

const networkFact = ({ name, bridge, mtu, subnets }: DockerNetwork): DockerNetworkFact => ({
  name,
  driver: "bridge",
  bridge,
  mtu: String(mtu),
  masquerade: "false",
  subnets,
  containers: [],
});

const linkFact = (link: Link) => ({
  type: link.type === "anchor" ? "bridge" : link.type,
  mac: link.mac ?? "",
  mtu: link.mtu ?? 1500,
  up: true,
  ...(link.master && { master: link.master }),
  ...(link.vxlan && { vxlan: { ...link.vxlan, learning: link.vxlan.remote === "" } }),
  ...(link.wireguard && {
    wireguard: { publicKey: link.wireguard.publicKey ?? "", port: link.wireguard.port, peers: new Map() },
  }),
});
