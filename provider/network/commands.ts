import type { Family } from "../addressing/line";
import { letsPass } from "./chains";
import { dockerCreate, dockerRemove } from "./docker";
import { announcements, expirePeers, forgetting, WARNING } from "./follow-up";
import {
  type Address,
  type HostRecord,
  type Item,
  type Link,
  POLICY_PRIORITY,
  type Policy,
  ROUTE_PROTOCOL,
  type Route,
  type Service,
} from "./items";
import { RECORDS, recordPath, sysctlPath, unitPath } from "./paths";
import { quote, requirePlain } from "./quote";
import { recordText } from "./record";
import type { Step } from "./steps";
import { type HostFile, renderWrite, textFile } from "./write-file";
import { zoneCommands } from "./zones";

/** The tools that a host's changes go through, each called once with all its lines where it can be. */
export interface Lines {
  /** Written before the first change. */
  writes: HostFile[];
  /** Former values of settings, kept before the first change. */
  saves: string[];
  /** Units that are enabled, and files that go. */
  files: string[];
  shell: string[];
  ip: string[];
  /** After all devices are there. */
  late: string[];
  /** By family and table, in iptables-restore's form. */
  firewall: Map<string, string[]>;
}

/**
 * The whole change of a host as one script. All that is to be written comes first, and ends it if it cannot be: nothing of
 * ours ever stands without a record, and no setting is changed whose former value is not kept. `aside`: files in the place of
 * records that are none; they are kept under another name.
 */
export function renderChange(steps: Step[], records: HostRecord[], aside: string[] = []): string {
  const lines = linesOf(steps);
  const writes = [...records.map(recordFile), ...lines.writes];
  return [
    "rc=0",
    ...aside.map((file) => `mv ${quote(file)} ${quote(file)}.invalid-$(date -u +%Y%m%dT%H%M%SZ) || exit 1`),
    ...(writes.length > 0 ? [`${renderWrite(writes)} || exit 1`] : []),
    ...lines.saves.map((line) => `${line} || exit 1`),
    ...[...lines.files, ...lines.shell].map((line) => `${line} || rc=1`),
    ...(lines.ip.length > 0 ? [here("ip -force -batch -", lines.ip)] : []),
    ...lines.late.map((line) => `${line} || rc=1`),
    ...([4, 6] as const).flatMap((family) => restore(family, lines.firewall)),
    ...forgetting(steps),
    ...expirePeers(steps),
    ...announcements(steps),
    "exit $rc",
  ].join("\n");
}

export function linesOf(steps: Step[]): Lines {
  const lines: Lines = { writes: [], saves: [], files: [], shell: [], ip: [], late: [], firewall: new Map() };
  for (const step of steps) render(step, lines);
  return lines;
}

/** After a change has been seen to be there: records cut to what stands, and those that list nothing removed. */
export function renderRecords(final: HostRecord[], gone: Omit<HostRecord, "items">[]): string {
  const folders = [...new Set(gone.map(({ network }) => quote(`${RECORDS}/${network}`)))].join(" ");
  return [
    ...(final.length > 0 ? [`${renderWrite(final.map(recordFile))} || exit 1`] : []),
    ...gone.map((record) => {
      const file = quote(recordPath(record));
      return `rm -f ${file} ${file}.tmp ${file}.invalid-* || exit 1`;
    }),
    ...(gone.length > 0 ? [`rmdir ${RECORDS}/former ${folders} ${RECORDS} 2>/dev/null; :`] : []),
  ].join("\n");
}

const recordFile = (record: HostRecord): HostFile => textFile(recordPath(record), recordText(record));

export const TABLES = ["raw", "mangle", "filter", "nat"] as const;
export const toolOf = (family: Family): string => (family === 4 ? "iptables" : "ip6tables");

const here = (command: string, lines: string[]): string => `${command} <<'END' || rc=1\n${lines.join("\n")}\nEND`;

function restore(family: Family, firewall: Lines["firewall"]): string[] {
  const tables = TABLES.flatMap((table) => {
    const lines = firewall.get(`${family} ${table}`);
    return lines ? [`*${table}`, ...lines, "COMMIT"] : [];
  });
  return tables.length > 0 ? [here(`${toolOf(family)}-restore --noflush -w 10`, tables)] : [];
}

function render(
  { verb, item, copies = 1, instead = [], ports = [], leave = false, former, places = [], position }: Step,
  lines: Lines,
): void {
  requirePlain(item, [...instead, ...ports]);
  switch (item.kind) {
    case "sysctl":
      if (verb !== "remove") lines.saves.push(saveSysctl(item.key));
      lines.shell.push(verb === "remove" ? restoreSysctl(item.key, leave, former) : setSysctl(item.key, item.value));
      break;
    case "link":
      renderLink(verb, item, lines);
      for (const port of ports) lines.ip.push(`link set dev ${port} master ${item.name}`);
      break;
    case "address":
      lines.ip.push(verb === "remove" ? `address del ${item.address} dev ${item.dev}` : addressText(item));
      for (const other of instead) lines.ip.push(`address del ${other} dev ${item.dev}`);
      break;
    case "route":
      lines.ip.push(`route ${verb === "remove" ? "del" : "replace"} ${routeText(item)}`);
      break;
    case "policy":
      // In a batch `ip` takes every range for one of IPv4.
      lines.shell.push(verb === "remove" ? `ip -${item.family} rule del ${policyText(item)}` : addPolicy(item));
      break;
    case "zone": {
      const commands = zoneCommands(verb, item, places);
      lines[verb === "remove" ? "shell" : "late"].push(...commands.map((words) => words.map(quote).join(" ")));
      break;
    }
    case "file":
      if (verb === "remove") lines.files.push(`rm -f ${quote(item.path)}`);
      else lines.writes.push(textFile(item.path, item.content ?? ""));
      break;
    case "service":
      if (verb !== "remove") lines.writes.push(textFile(unitPath(item.name), item.unit ?? ""));
      lines.files.push(verb === "remove" ? dropService(item) : enableService(item));
      break;
    case "docker":
      // Before its bridge goes, and after it has come.
      if (verb !== "add") lines.shell.push(dockerRemove(item).map(quote).join(" "));
      if (verb !== "remove") lines.late.push(dockerCreate(item).map(quote).join(" "));
      break;
    default:
      firewallLines(item, lines.firewall).push(...renderFirewall(verb, item, copies, position));
  }
}

/** Enabling reads all units anew. One that has failed is as good as new: what it should have made is made by us. */
const enableService = ({ name, stays }: Service): string => {
  const now = stays ? `start --no-block ${name}` : `reset-failed ${name} 2>/dev/null || :`;
  return `{ systemctl enable --quiet ${name} && { systemctl ${now}; }; }`;
};

const dropService = ({ name }: Service): string =>
  `{ systemctl disable --quiet --no-reload --now ${name}; rm -f ${unitPath(name)} && systemctl daemon-reload; }`;

/** The former value is kept beside the records, once, and comes back when the last record that needs ours goes. */
const formerPath = (key: string): string => `${RECORDS}/former/${key.replaceAll("/", ":")}`;

/** A device's may be gone with its device, and comes back with it as the kernel makes it. An empty file keeps nothing. */
const saveSysctl = (key: string): string => {
  const save = renderWrite([{ path: formerPath(key), word: '"$former"' }]);
  return `{ [ ! -e ${sysctlPath(key)} ] || [ -s ${quote(formerPath(key))} ] || { former=$(cat ${sysctlPath(key)}) && ${save}; }; }`;
};

/** Only where its former value is kept. */
const setSysctl = (key: string, value: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || { [ -s ${quote(formerPath(key))} ] && echo ${quote(value)} >${sysctlPath(key)}; }; }`;

/** `known`: the former value, where it is known although it was not kept. */
function restoreSysctl(key: string, leave: boolean, known?: string): string {
  const former = quote(formerPath(key));
  if (leave) return `rm -f ${former}`;
  const unknown = `echo ${quote(`${WARNING}${key} stays as it is: the value that it had before was not kept.`)}`;
  const other = known === undefined ? unknown : `echo ${quote(known)} >${sysctlPath(key)}`;
  const restore = `if [ -s ${former} ]; then cat ${former} >${sysctlPath(key)}; else ${other}; fi`;
  const kept = `{ { [ ! -e ${sysctlPath(key)} ] || ${restore}; } && rm -f ${former}; }`;
  return known === undefined ? `{ [ ! -e ${former} ] || ${kept}; }` : kept;
}

function renderLink(verb: Step["verb"], item: Link, lines: Lines): void {
  const { name, vxlan } = item;
  const anchor = item.type === "anchor";
  if (verb === "remove") {
    // Only a shell can try dummy, then bridge; so an anchor that is made anew is removed there, too.
    if (anchor) lines.shell.push(`ip link del dev ${name}`);
    else lines.ip.push(`link del dev ${name}`);
    return;
  }
  const create = verb === "add";
  // With the MAC from the start: systemd-udevd gives a device without one its own, at whatever moment.
  const mac = item.mac ? ` address ${item.mac}` : "";
  if (create && anchor) {
    lines.shell.push(
      `{ [ -e /sys/class/net/${name} ] || ip link add ${name}${mac} type dummy 2>/dev/null || ip link add ${name}${mac} type bridge; }`,
    );
  }
  if (create && item.type === "bridge") lines.ip.push(`link add ${name}${mac} type bridge`);
  if (vxlan) {
    const ends = `remote ${vxlan.remote} local ${vxlan.local} nolearning`;
    lines.ip.push(
      create
        ? `link add ${name}${mac} type vxlan id ${vxlan.vni} dstport ${vxlan.port} ${ends}`
        : `link set dev ${name} type vxlan id ${vxlan.vni} ${ends}`,
    );
  }
  const attributes = [
    item.mac && `address ${item.mac}`,
    item.mtu && `mtu ${item.mtu}`,
    item.master !== undefined && (item.master ? `master ${item.master}` : "nomaster"),
    "up",
  ];
  lines.ip.push(`link set dev ${name} ${attributes.filter(Boolean).join(" ")}`);
}

/**
 * The pool has made sure that nobody else has it; and without a carrier the kernel would never end its own search. An
 * address that may go to another host is never the source of what this one sends by itself.
 */
const addressText = ({ address, dev, announce }: Address): string =>
  [
    `address replace ${address} dev ${dev}`,
    ...(isV6(address) ? ["nodad", ...(announce ? ["preferred_lft 0"] : [])] : []),
  ].join(" ");

const isV6 = (address: string): boolean => address.includes(":");

/** A second one of the same kind would be refused. */
const addPolicy = (item: Policy): string =>
  `{ [ -n "$(ip -${item.family} rule show from ${item.from} fwmark ${item.mark} table ${item.table})" ] || ip -${item.family} rule add ${policyText(item)}; }`;

const policyText = ({ from, mark, table }: Policy): string =>
  `from ${from} fwmark ${mark} lookup ${table} priority ${POLICY_PRIORITY} protocol ${ROUTE_PROTOCOL}`;

const routeText = ({ dst, via, dev, metric, table }: Route): string =>
  [
    ...(via ? [dst, "via", via, "dev", dev] : ["unreachable", dst]),
    "proto",
    ROUTE_PROTOCOL,
    ...(metric === undefined ? [] : ["metric", metric]),
    ...(table === undefined ? [] : ["table", table]),
  ].join(" ");

type FirewallItem = Extract<Item, { table: string }>;

function firewallLines({ family, table }: FirewallItem, firewall: Lines["firewall"]): string[] {
  const key = `${family} ${table}`;
  if (!firewall.has(key)) firewall.set(key, []);
  return firewall.get(key)!;
}

function renderFirewall(verb: Step["verb"], item: FirewallItem, copies: number, position = 1): string[] {
  if (item.kind === "chain") {
    return verb === "remove" ? [`-F ${item.chain}`, `-X ${item.chain}`] : [`:${item.chain} - [0:0]`];
  }
  const [chain, rule] = item.kind === "rule" ? [item.chain, item.rule] : [item.from, `-j ${item.chain}`];
  const remove = verb === "add" ? [] : Array<string>(copies).fill(`-D ${chain} ${rule}`);
  if (verb === "remove") return remove;
  const atEnd = item.kind === "rule" ? !letsPass(item.rule) : item.atEnd;
  return [...remove, atEnd ? `-A ${chain} ${rule}` : `-I ${chain} ${position} ${rule}`];
}
