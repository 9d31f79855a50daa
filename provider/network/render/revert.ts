import { addressBits, familyOf, tryParseIp } from "../../addressing/ip";
import { invertStep } from "../kinds";
import { devicesWithAddress } from "../kinds/device";
import { FORWARD, GUARD, observedRules, REST, type RuleOrJump } from "../kinds/firewall";
import type { Facts, RouteFact, SshPath } from "../model/facts";
import type { Step } from "../model/items";
import { LOCK_DIR, quote, renderWriteFiles, textFile } from "./shell";

/**
 * The steps that could cut our SSH connection to the host. Most cannot: a new device with a new range carries no SSH. In doubt a step
 * counts as risky: that costs one more connection, while a lock-out needs physical access.
 */
export function findRiskySteps(steps: Step[], facts: Facts): Step[] {
  const { ssh } = facts;
  if (!ssh) return [];
  const carriers = devicesCarryingSsh(ssh, facts);
  return steps.filter((step) => canCutSsh(step, ssh, carriers, facts));
}

function canCutSsh({ verb, item }: Step, ssh: SshPath, carriers: Set<string>, facts: Facts): boolean {
  const mayCut = (firewall: RuleOrJump, rules: string[]): boolean =>
    (seesHostTraffic(firewall, ssh) && canRulesCutSsh(verb, rules, ssh, carriers)) ||
    (verb === "remove" && isOverVxlan(carriers, facts));
  switch (item.kind) {
    case "link":
      return carriers.has(item.name) || carriers.has(item.master ?? "");
    case "docker":
      return carriers.has(item.bridge);
    case "address": // with it the kernel adds or removes the route to its range, and with the first of a range the others
      return containsIp(item.address, ssh.client) || containsIp(item.address, ssh.server);
    case "route": // other tables than main apply only to what a policy rule selects
      return item.table === undefined && containsIp(item.dst, ssh.client);
    case "policy":
      return containsIp(item.from, ssh.server);
    case "sysctl": // with forwarding the kernel drops routes from router advertisements
      return item.key.startsWith("net.ipv6.") && routeTo(ssh.client, facts)?.protocol === "ra";
    case "rule":
      return mayCut(item, [item.rule]);
    case "jump":
      return mayCut(item, observedRules(facts, item, item.chain));
    case "chain":
    case "zone": // our entries accept VXLAN and packets from the overlay, and nothing else
    case "file":
    case "service":
      return false;
  }
}

/** Devices that carry SSH: those with the server's address, that of the route to the client, and their ports and bridges. */
function devicesCarryingSsh({ client, server }: SshPath, facts: Facts): Set<string> {
  const names = new Set([...devicesWithAddress(server, facts), routeTo(client, facts)?.dev ?? ""]);
  names.delete("");
  for (const name of names) {
    const master = facts.links.get(name)?.master;
    if (master) names.add(master);
    for (const [port, { master }] of facts.links) if (master === name) names.add(port);
  }
  return names;
}

const isOverVxlan = (carriers: Set<string>, { links }: Facts): boolean =>
  [...carriers].some((name) => links.get(name)?.vxlan !== undefined);

/** The longest match; the default route is the shortest. */
function routeTo(client: string, { routes }: Facts): RouteFact | undefined {
  const family = client.includes(":") ? 6 : 4;
  return routes
    .filter(({ family: its, table, unreachable }) => its === family && table === undefined && !unreachable)
    .filter(({ dst }) => containsIp(dst, client))
    .sort((a, b) => prefixLength(b.dst) - prefixLength(a.dst))[0];
}

const prefixLength = (range: string): number => (range === "default" ? -1 : Number(range.split("/")[1] ?? 128));

/** Whether a range, or an address with a prefix, has this address in it. */
export function containsIp(range: string, address: string): boolean {
  if (range === "default") return true;
  const [base, length] = range.split("/");
  const [first, point] = [tryParseIp(base!), tryParseIp(address)];
  if (first === undefined || point === undefined || familyOf(first) !== familyOf(point)) return false;
  const width = addressBits(familyOf(first));
  const host = BigInt(width - Number(length ?? width));
  return first >> host === point >> host;
}

/** A rule that passes or only marks packets is harmless when it is added; the removal of any rule may be harmful. */
const HARMLESS = /(^| )-j (ACCEPT|RETURN|MASQUERADE|CONNMARK|MARK)( |$)/;

const canRulesCutSsh = (verb: Step["verb"], rules: string[], ssh: SshPath, carriers: Set<string>): boolean =>
  rules.some((rule) => canMatchSsh(rule, ssh, carriers) && (verb === "remove" || !HARMLESS.test(rule)));

/** Chains that FORWARD jumps to see only forwarded packets, and no chain sees the other family. */
const seesHostTraffic = ({ family, chain }: RuleOrJump, { server }: SshPath): boolean =>
  (family === 6) === server.includes(":") && ![FORWARD, GUARD, REST].some((place) => place.chain === chain);

/** A trailing + in a rule matches any name with this prefix. */
const matchesInterface = (pattern: string, device: string): boolean =>
  pattern.endsWith("+") ? device.startsWith(pattern.slice(0, -1)) : device === pattern;

/** Whether a rule in iptables-save's form can match a packet of the SSH connection, in either direction. */
function canMatchSsh(rule: string, { client, server, port }: SshPath, carriers: Set<string>): boolean {
  const of = (option: string): string | undefined =>
    new RegExp(`(?<!! )(?:^| )${option} (\\S+)`).exec(rule.replaceAll(/! \S+ \S+/g, ""))?.[1];
  const fits = (option: string, address: string): boolean => containsIp(of(option) ?? "default", address);
  if ((of("-p") ?? "tcp") !== "tcp") return false;
  const device = of("-i") ?? of("-o");
  if (device !== undefined && ![...carriers].some((carrier) => matchesInterface(device, carrier))) return false;
  const dport = of("--dport");
  const comes = fits("-s", client) && fits("-d", server) && (dport === undefined || isInPortRange(dport, port));
  return comes || (dport === undefined && fits("-s", server) && fits("-d", client));
}

function isInPortRange(text: string, port: number): boolean {
  const [first, last = first] = text.split(":").map(Number);
  return first! <= port && port <= last!;
}

/**
 * A timer on the host that reverts a change unless its script is moved away in time. It needs no connection and
 * no lock: the process that made the change holds the lock, and may be cut off with it.
 */
export interface RevertTimer {
  /** Of this one change; letters and digits. */
  id: string;
  seconds: number;
  /** The commands that revert the change. */
  script: string;
}

const TIMER_PREFIX = `${LOCK_DIR}/revert-`;
const timerScript = (id: string): string => `${TIMER_PREFIX}${id}.sh`;

/** Moving the script away either starts it or cancels it: it runs at most once. */
const runOnce = (file: string): string =>
  `mv ${file} ${file}.now 2>/dev/null || exit 0; sh ${file}.now; rm -f ${file}.now`;

/** In a session of its own, to survive the connection. It checks every second, so that no timer stays long after it was cancelled. */
export function renderStartTimer({ id, seconds, script }: RevertTimer): string {
  const file = timerScript(id);
  const timer = `n=0; while [ $n -lt ${seconds} ]; do sleep 1; [ -e ${file} ] || exit 0; n=$((n+1)); done; ${runOnce(file)}`;
  return `${renderWriteFiles([textFile(file, script)])} || exit 1\nsetsid sh -c ${quote(timer)} </dev/null >/dev/null 2>&1 &`;
}

/** Fails if the timer has expired. */
export const renderCancelTimer = (id: string): string =>
  `mv ${timerScript(id)} ${timerScript(id)}.off && rm -f ${timerScript(id)}.off`;

/** Changes that were never confirmed are reverted by the next conversation, before it reads the host. */
export const REVERT_UNCONFIRMED = `for f in ${TIMER_PREFIX}*.sh; do [ ! -f "$f" ] || (${runOnce('"$f"')}) >&2; done`;

/** The steps that lead back to `before`, last change first. What other programs changed meanwhile stays as it is. */
export const invertSteps = (steps: Step[], before: Facts): Step[] =>
  [...steps].reverse().flatMap((step) => invertStep(step, before));
