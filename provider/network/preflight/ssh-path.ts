import { familyOf, pointOf, widthOf } from "../../addressing/ip";
import { devicesWith } from "../kinds/device";
import { FORWARD, GUARD, REST } from "../kinds/firewall";
import type { Facts, RouteFact, SshPath } from "../model/facts";
import type { Jump, Rule } from "../model/items";
import type { Step } from "../model/steps";

/**
 * Which of these changes could cut the way by which we talk with the host. Most of ours cannot: a new device with a new
 * range carries nobody's SSH. In doubt it says yes: that costs one more connection, and a lock-out costs a journey.
 */
export function endangersSsh(steps: Step[], facts: Facts): Step[] {
  const { ssh } = facts;
  if (!ssh) return [];
  const carriers = carriersOf(ssh, facts);
  return steps.filter((step) => endangers(step, ssh, carriers, facts));
}

function endangers({ verb, item }: Step, ssh: SshPath, carriers: Set<string>, facts: Facts): boolean {
  const mayCut = (firewall: FirewallItem, rules: string[]): boolean =>
    (seesHostTraffic(firewall, ssh) && rulesEndanger(verb, rules, ssh, carriers)) ||
    (verb === "remove" && isTunnelled(carriers, facts));
  switch (item.kind) {
    case "link":
      return carriers.has(item.name) || carriers.has(item.master ?? "");
    case "docker":
      return carriers.has(item.bridge);
    case "address": // with it comes or goes the route to its range, and with the first of a range the others
      return covers(item.address, ssh.client) || covers(item.address, ssh.server);
    case "route": // another table than the main one is only asked for what a policy sends there
      return item.table === undefined && covers(item.dst, ssh.client);
    case "policy":
      return covers(item.from, ssh.server);
    case "sysctl": // a router listens to no router: the kernel drops what it has learnt from advertisements
      return item.key.startsWith("net.ipv6.") && routeTo(ssh.client, facts)?.protocol === "ra";
    case "rule":
      return mayCut(item, [item.rule]);
    case "jump":
      return mayCut(item, rulesIn(item, facts));
    case "chain":
    case "zone": // ours let in VXLAN and what comes from the overlay, and nothing else
    case "file":
    case "service":
      return false;
  }
}

/** Devices that carry the path: those with the server's address, that of the route back, and their ports and bridges. */
function carriersOf({ client, server }: SshPath, facts: Facts): Set<string> {
  const names = new Set([...devicesWith(server, facts), routeTo(client, facts)?.dev ?? ""]);
  names.delete("");
  for (const name of names) {
    const master = facts.links.get(name)?.master;
    if (master) names.add(master);
    for (const [port, { master }] of facts.links) if (master === name) names.add(port);
  }
  return names;
}

const isTunnelled = (carriers: Set<string>, { links }: Facts): boolean =>
  [...carriers].some((name) => links.get(name)?.vxlan !== undefined);

/** The longest match; the default route is the shortest. */
function routeTo(client: string, { routes }: Facts): RouteFact | undefined {
  const family = client.includes(":") ? 6 : 4;
  return routes
    .filter(({ family: its, table, unreachable }) => its === family && table === undefined && !unreachable)
    .filter(({ dst }) => covers(dst, client))
    .sort((a, b) => prefixOf(b.dst) - prefixOf(a.dst))[0];
}

const prefixOf = (range: string): number => (range === "default" ? -1 : Number(range.split("/")[1] ?? 128));

/** Whether a range, or an address with a prefix, has this address in it. */
export function covers(range: string, address: string): boolean {
  if (range === "default") return true;
  const [base, length] = range.split("/");
  const [first, point] = [pointOf(base!), pointOf(address)];
  if (first === undefined || point === undefined || familyOf(first) !== familyOf(point)) return false;
  const width = widthOf(familyOf(first));
  const host = BigInt(width - Number(length ?? width));
  return first >> host === point >> host;
}

const rulesIn = ({ family, table, chain }: Pick<Rule, "family" | "table" | "chain">, facts: Facts): string[] =>
  facts.chains.get(`${family} ${table} ${chain}`) ?? [];

/** What lets a packet pass, or only marks it, does no harm when it comes; anything may when it goes. */
const HARMLESS = /(^| )-j (ACCEPT|RETURN|MASQUERADE|CONNMARK|MARK)( |$)/;

const rulesEndanger = (verb: Step["verb"], rules: string[], ssh: SshPath, carriers: Set<string>): boolean =>
  rules.some((rule) => mayMatch(rule, ssh, carriers) && (verb === "remove" || !HARMLESS.test(rule)));

type FirewallItem = Rule | Jump;

/** Chains that FORWARD leads to see only what the host passes on, and no chain sees the other family. */
const seesHostTraffic = ({ family, chain }: FirewallItem, { server }: SshPath): boolean =>
  (family === 6) === server.includes(":") && ![FORWARD, GUARD, REST].some((place) => place.chain === chain);

/** A name in a rule ends with + where it stands for all that begin so. */
const isNamed = (pattern: string, device: string): boolean =>
  pattern.endsWith("+") ? device.startsWith(pattern.slice(0, -1)) : device === pattern;

/** Whether a rule in iptables-save's form can see a packet of the path, in either direction. */
function mayMatch(rule: string, { client, server, port }: SshPath, carriers: Set<string>): boolean {
  const of = (option: string): string | undefined =>
    new RegExp(`(?<!! )(?:^| )${option} (\\S+)`).exec(rule.replaceAll(/! \S+ \S+/g, ""))?.[1];
  const fits = (option: string, address: string): boolean => covers(of(option) ?? "default", address);
  if ((of("-p") ?? "tcp") !== "tcp") return false;
  const device = of("-i") ?? of("-o");
  if (device !== undefined && ![...carriers].some((carrier) => isNamed(device, carrier))) return false;
  const dport = of("--dport");
  const comes = fits("-s", client) && fits("-d", server) && (dport === undefined || inPorts(dport, port));
  return comes || (dport === undefined && fits("-s", server) && fits("-d", client));
}

function inPorts(text: string, port: number): boolean {
  const [first, last = first] = text.split(":").map(Number);
  return first! <= port && port <= last!;
}
