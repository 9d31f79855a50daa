import type { Family } from "../addressing/line";
import { dockerCreate, dockerRemove } from "./docker";
import { RECORDS, sysctlPath, unitPath } from "./facts";
import { announcements, forgetting } from "./follow-up";
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
import { quote } from "./quote";
import type { Step } from "./steps";
import { zoneCommands } from "./zones";

/** The tools that a host's changes go through, each called once with all its lines where it can be. */
export interface Lines {
  /** What brings it back after a boot. */
  files: string[];
  shell: string[];
  ip: string[];
  /** After all devices are there. */
  late: string[];
  /** By family and table, in iptables-restore's form. */
  firewall: Map<string, string[]>;
}

/** The whole change of a host as one script: records first, so that nothing of ours ever stands without one. */
export function renderChange(steps: Step[], records: HostRecord[]): string {
  const lines = linesOf(steps);
  return [
    "rc=0",
    ...records.map(writeRecord),
    ...[...lines.files, ...lines.shell].map((line) => `${line} || rc=1`),
    ...(lines.ip.length > 0 ? [here("ip -force -batch -", lines.ip)] : []),
    ...lines.late.map((line) => `${line} || rc=1`),
    ...([4, 6] as const).flatMap((family) => restore(family, lines.firewall)),
    ...forgetting(steps),
    ...announcements(steps),
    "exit $rc",
  ].join("\n");
}

export function linesOf(steps: Step[]): Lines {
  const lines: Lines = { files: [], shell: [], ip: [], late: [], firewall: new Map() };
  for (const step of steps) render(step, lines);
  return lines;
}

/** After a change has been seen to be there: records cut to what stands, and those that list nothing removed. */
export function renderRecords(final: HostRecord[], gone: HostRecord[]): string {
  const folders = [...new Set(gone.map(({ network }) => quote(`${RECORDS}/${network}`)))].join(" ");
  return [
    ...final.map(writeRecord),
    ...gone.map(({ network, uid }) => `rm -f ${recordPath(network, uid)} || exit 1`),
    ...(gone.length > 0 ? [`rmdir ${RECORDS}/former ${folders} ${RECORDS} 2>/dev/null; :`] : []),
  ].join("\n");
}

const recordPath = (network: string, uid: string): string => quote(`${RECORDS}/${network}/${uid}.json`);

const writeRecord = (record: HostRecord): string =>
  `${writeFile(`${RECORDS}/${record.network}/${record.uid}.json`, `${JSON.stringify(record)}\n`)} || exit 1`;

/** Without starting a program where it is there already; a change of one machine writes half a dozen files. */
const folderIn = (folder: string): string => `{ [ -d ${folder} ] || mkdir -p ${folder}; }`;

/** Whole or not at all. */
function writeFile(path: string, content: string): string {
  const [folder, file] = [quote(path.slice(0, path.lastIndexOf("/"))), quote(path)];
  return `{ ${folderIn(folder)} && printf %s ${quote(content)} >${file}.tmp && mv ${file}.tmp ${file}; }`;
}

export const TABLES = ["raw", "filter", "nat"] as const;
export const toolOf = (family: Family): string => (family === 4 ? "iptables" : "ip6tables");

const here = (command: string, lines: string[]): string => `${command} <<'END' || rc=1\n${lines.join("\n")}\nEND`;

function restore(family: Family, firewall: Lines["firewall"]): string[] {
  const tables = TABLES.flatMap((table) => {
    const lines = firewall.get(`${family} ${table}`);
    return lines ? [`*${table}`, ...lines, "COMMIT"] : [];
  });
  return tables.length > 0 ? [here(`${toolOf(family)}-restore --noflush -w 10`, tables)] : [];
}

function render({ verb, item, copies = 1, instead = [], leave = false, place }: Step, lines: Lines): void {
  switch (item.kind) {
    case "sysctl":
      lines.shell.push(verb === "remove" ? restoreSysctl(item.key, leave) : setSysctl(item.key, item.value));
      break;
    case "link":
      renderLink(verb, item, lines);
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
      const commands = zoneCommands(verb === "remove" ? "remove" : "add", item, place!);
      lines[verb === "remove" ? "shell" : "late"].push(...commands.map((words) => words.map(quote).join(" ")));
      break;
    }
    case "file":
      lines.files.push(verb === "remove" ? `rm -f ${quote(item.path)}` : writeFile(item.path, item.content ?? ""));
      break;
    case "service":
      lines.files.push(verb === "remove" ? dropService(item) : putService(item));
      break;
    case "docker":
      // Before its bridge goes, and after it has come.
      if (verb !== "add") lines.shell.push(dockerRemove(item).map(quote).join(" "));
      if (verb !== "remove") lines.late.push(dockerCreate(item).map(quote).join(" "));
      break;
    default:
      firewallLines(item, lines.firewall).push(...renderFirewall(verb, item, copies));
  }
}

/** Enabling reads all units anew. One that has failed is as good as new: what it should have made is made by us. */
const putService = ({ name, unit = "", stays }: Service): string => {
  const now = stays ? `start --no-block ${name}` : `reset-failed ${name} 2>/dev/null || :`;
  return `{ ${writeFile(unitPath(name), unit)} && systemctl enable --quiet ${name} && { systemctl ${now}; }; }`;
};

const dropService = ({ name }: Service): string =>
  `{ systemctl disable --quiet --no-reload --now ${name}; rm -f ${unitPath(name)} && systemctl daemon-reload; }`;

/** The former value is kept beside the records, once, and comes back when the last record that needs ours goes. */
const formerPath = (key: string): string => quote(`${RECORDS}/former/${key.replaceAll("/", ":")}`);

/** A device's may be gone with its device, and comes back with it as the kernel makes it. */
const setSysctl = (key: string, value: string): string =>
  `{ [ ! -e ${sysctlPath(key)} ] || { ${folderIn(`${RECORDS}/former`)} && { [ -e ${formerPath(key)} ] || cat ${sysctlPath(key)} >${formerPath(key)}; } && echo ${quote(value)} >${sysctlPath(key)}; }; }`;

const restoreSysctl = (key: string, leave: boolean): string =>
  leave
    ? `rm -f ${formerPath(key)}`
    : `{ [ ! -e ${formerPath(key)} ] || { { [ ! -e ${sysctlPath(key)} ] || cat ${formerPath(key)} >${sysctlPath(key)}; } && rm -f ${formerPath(key)}; }; }`;

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

function renderFirewall(verb: Step["verb"], item: FirewallItem, copies: number): string[] {
  if (item.kind === "chain") {
    return verb === "remove" ? [`-F ${item.chain}`, `-X ${item.chain}`] : [`:${item.chain} - [0:0]`];
  }
  const [chain, rule] = item.kind === "rule" ? [item.chain, item.rule] : [item.from, `-j ${item.chain}`];
  const remove = verb === "add" ? [] : Array<string>(copies).fill(`-D ${chain} ${rule}`);
  if (verb === "remove") return remove;
  return [...remove, item.kind === "rule" ? `-A ${chain} ${rule}` : `-I ${chain} 1 ${rule}`];
}
