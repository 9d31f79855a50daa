import type { Family } from "../addressing/line";
import { dockerCreate, dockerRemove } from "./docker";
import { RECORDS, sysctlPath } from "./facts";
import { type Address, type HostRecord, type Item, type Link, ROUTE_PROTOCOL, type Route } from "./items";
import type { Step } from "./steps";
import { zoneCommands } from "./zones";

/** The tools that a host's changes go through, each called once with all its lines where it can be. */
interface Lines {
  shell: string[];
  ip: string[];
  /** After all devices are there. */
  late: string[];
  /** By family and table, in iptables-restore's form. */
  firewall: Map<string, string[]>;
}

export const quote = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

/** The whole change of a host as one script: records first, so that nothing of ours ever stands without one. */
export function renderChange(steps: Step[], records: HostRecord[]): string {
  const lines: Lines = { shell: [], ip: [], late: [], firewall: new Map() };
  for (const step of steps) render(step, lines);
  return [
    "rc=0",
    ...records.map(writeRecord),
    ...lines.shell.map((line) => `${line} || rc=1`),
    ...(lines.ip.length > 0 ? [here("ip -force -batch -", lines.ip)] : []),
    ...lines.late.map((line) => `${line} || rc=1`),
    ...([4, 6] as const).flatMap((family) => restore(family, lines.firewall)),
    "exit $rc",
  ].join("\n");
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

function writeRecord(record: HostRecord): string {
  const path = recordPath(record.network, record.uid);
  return `mkdir -p ${quote(`${RECORDS}/${record.network}`)} && printf '%s\\n' ${quote(JSON.stringify(record))} >${path}.tmp && mv ${path}.tmp ${path} || exit 1`;
}

const here = (command: string, lines: string[]): string => `${command} <<'END' || rc=1\n${lines.join("\n")}\nEND`;

function restore(family: Family, firewall: Lines["firewall"]): string[] {
  const tables = (["filter", "nat"] as const).flatMap((table) => {
    const lines = firewall.get(`${family} ${table}`);
    return lines ? [`*${table}`, ...lines, "COMMIT"] : [];
  });
  const tool = family === 4 ? "iptables-restore" : "ip6tables-restore";
  return tables.length > 0 ? [here(`${tool} --noflush -w 10`, tables)] : [];
}

function render({ verb, item, copies = 1, leave = false, zone = "" }: Step, lines: Lines): void {
  switch (item.kind) {
    case "sysctl":
      lines.shell.push(verb === "remove" ? restoreSysctl(item.key, leave) : setSysctl(item.key, item.value));
      break;
    case "link":
      renderLink(verb, item, lines);
      break;
    case "address":
      lines.ip.push(verb === "remove" ? `address del ${item.address} dev ${item.dev}` : addressText(item));
      break;
    case "route":
      lines.ip.push(`route ${verb === "remove" ? "del" : "replace"} ${routeText(item)}`);
      break;
    case "docker":
      // Before its bridge goes, and after it has come.
      if (verb !== "add") lines.shell.push(dockerRemove(item).map(quote).join(" "));
      if (verb !== "remove") lines.late.push(dockerCreate(item).map(quote).join(" "));
      break;
    case "zone": {
      const commands = zoneCommands(verb === "remove" ? "remove" : "add", item, zone);
      lines[verb === "remove" ? "shell" : "late"].push(...commands.map((words) => words.map(quote).join(" ")));
      break;
    }
    default:
      firewallLines(item, lines.firewall).push(...renderFirewall(verb, item, copies));
  }
}

/** The former value is kept beside the records, once, and comes back when the last record that needs ours goes. */
const formerPath = (key: string): string => quote(`${RECORDS}/former/${key}`);

const setSysctl = (key: string, value: string): string =>
  `{ mkdir -p ${RECORDS}/former && { [ -e ${formerPath(key)} ] || cat ${sysctlPath(key)} >${formerPath(key)}; } && echo ${quote(value)} >${sysctlPath(key)}; }`;

const restoreSysctl = (key: string, leave: boolean): string =>
  leave
    ? `rm -f ${formerPath(key)}`
    : `{ [ ! -e ${formerPath(key)} ] || { cat ${formerPath(key)} >${sysctlPath(key)} && rm -f ${formerPath(key)}; }; }`;

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
  if (create && anchor) {
    lines.shell.push(`{ ip link add ${name} type dummy 2>/dev/null || ip link add ${name} type bridge; }`);
  }
  if (create && item.type === "bridge") lines.ip.push(`link add ${name} type bridge`);
  if (vxlan) {
    const ends = `remote ${vxlan.remote} local ${vxlan.local} nolearning`;
    lines.ip.push(
      create
        ? `link add ${name} type vxlan id ${vxlan.vni} dstport ${vxlan.port} ${ends}`
        : `link set dev ${name} type vxlan id ${vxlan.vni} ${ends}`,
    );
  }
  const attributes = [
    item.mac && `address ${item.mac}`,
    item.mtu && `mtu ${item.mtu}`,
    item.master && `master ${item.master}`,
    "up",
  ];
  lines.ip.push(`link set dev ${name} ${attributes.filter(Boolean).join(" ")}`);
}

/** The pool has made sure that nobody else has it; and without a carrier the kernel would never end its own search. */
const addressText = ({ address, dev }: Address): string =>
  `address replace ${address} dev ${dev}${address.includes(":") ? " nodad" : ""}`;

const routeText = ({ dst, via, dev, metric }: Route): string =>
  [
    ...(via ? [dst, "via", via, "dev", dev] : ["unreachable", dst]),
    "proto",
    ROUTE_PROTOCOL,
    ...(metric === undefined ? [] : ["metric", metric]),
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
