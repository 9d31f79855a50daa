import type { Family } from "../../addressing/ip";
import { hasLinkType } from "../kinds/device";
import { addContainers, DOCKER_SCRIPT, parseDocker } from "../kinds/docker";
import type { ReadBack } from "../kinds/kind";
import { parseZones, ZONE_SCRIPT } from "../kinds/zone";
import type { Facts, FactsPart, LinkFact, ServiceFact, SshPath } from "../model/facts";
import type { DesiredState, Item, Link } from "../model/items";
import {
  BOOT_SCRIPT,
  deviceSysctl,
  isInvalidRecord,
  parseRecord,
  RECORD_DIR,
  RECORDED_FILES,
  SERVICES,
  scriptPath,
  swapDotsAndSlashes,
  unitPath,
} from "../model/record";
import { quote, requireWord } from "../render/shell";
import { FIREWALLS_SCRIPT, parseLegacyChains, parseNftChains } from "./firewalls";
import {
  FDB_SCRIPT,
  fdbScript,
  ipBatch,
  ipv6Part,
  LINKS_AND_ROUTING,
  OUR_ROUTES4,
  OUR_ROUTES6,
  ROUTING6,
  readFdb,
  readLinks,
  readOurRouting,
  readRouting,
} from "./ip";
import {
  readPublicKeys,
  readSilentPeers,
  readWireguard,
  SILENT_PEERS_SCRIPT,
  WIREGUARD_SCRIPT,
  wireguardRequirement,
} from "./wireguard";

/** The scripts that read a host, and the parsers of their output. */

const TOOLS =
  "for tool in ip awk bridge iptables-save iptables-restore sha256sum find stat; do command -v $tool >/dev/null || { echo $tool >&2; exit 127; }; done";
const FORWARDING_FILES = `/proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding ${RECORD_DIR}/former/net.ipv4.ip_forward ${RECORD_DIR}/former/net.ipv6.conf.all.forwarding`;
/**
 * Devices that do not forward, check the source of packets, or answer for neighbours. One answer for all is faster than their files in
 * /proc. dash reads a file byte by byte, and a setting in /proc ends after the first: `read` sets the variable, and fails.
 */
const NETCONF_SCRIPT =
  "echo '@@ netconf'; ip -4 netconf show | grep -E ' forwarding off | rp_filter (strict|loose) '; f=0; { read -r f || :; } 2>/dev/null </proc/sys/net/ipv6/conf/all/forwarding; if [ \"$f\" != 0 ]; then ip -6 netconf show | grep -E ' forwarding off | proxy_neigh on '; fi";
/** accept_ra of every device, which is slow on a hub: only if there are routes from router advertisements, or saved values. */
const ACCEPT_RA_SCRIPT = `set -- ${RECORD_DIR}/former/*.accept_ra; case "$answers$1" in *'"ra"'* | *[!*].accept_ra) grep -sH . /proc/sys/net/ipv6/conf/*/accept_ra ;; esac`;

const RULES6 =
  "if [ -e /proc/sys/net/ipv6 ] && command -v ip6tables-save >/dev/null; then echo '@@ rules6'; ip6tables-save || exit 1; fi";

/**
 * Owner and mode of those files and folders of ours that another user than root owns or can write. A file name with other characters than
 * ours is not printed: another user may have made it, and could imitate a line of the answer. The files are the shell's arguments.
 */
const ACCESS_SCRIPT = `echo '@@ access'; find -H ${RECORD_DIR} "$@" \\( -name '*[!A-Za-z0-9._:-]*' -prune \\) -o \\( ! -user 0 -o -perm -20 -o -perm -2 -o -name '*.key' -perm /77 \\) -exec stat -c '%u %a %n' {} + 2>/dev/null`;

const NEIGHBOURS_SCRIPT =
  "echo '@@ neighbours'; printf '%s\\n' 'neigh show proxy' 'neigh show nud permanent' | ip -batch -";

/** Parts whose size does not depend on the number of runners, except for the hashes of these files. */
const commonParts = (files: string): string[] => [
  "echo '@@ rules4'; iptables-save || exit 1",
  `echo '@@ sysctls'; grep -sH . ${FORWARDING_FILES}; ${ACCEPT_RA_SCRIPT}`,
  NETCONF_SCRIPT,
  `set -- ${files} ${SERVICES.map(unitPath).join(" ")}; echo '@@ files'; sha256sum "$@" 2>/dev/null`,
  ACCESS_SCRIPT,
  `[ ! -d /run/systemd/system ] || { echo '@@ systemd'; systemctl show -p Id -p UnitFileState -p ActiveState ${SERVICES.join(" ")} || exit 1; }`,
  DOCKER_SCRIPT,
  ZONE_SCRIPT,
  NEIGHBOURS_SCRIPT,
  WIREGUARD_SCRIPT,
];

/**
 * The names of all files, an empty line, then each line after the name of its file: the content of a file cannot be
 * mistaken for another part, and an empty or unreadable file is still seen. One process for all, because a hub has a record for
 * each runner.
 */
const ALL_RECORDS = `set -- ${RECORD_DIR}/*/*.json; case $1 in *'/*.json') ;; *) echo '@@ records'; printf '%s\\n' "$@"; echo; grep -aHs '' "$@" || : ;; esac`;

/**
 * Reads everything in one message; each part starts with a line `@@ NAME`. Changes nothing. If a part cannot be read,
 * the script fails: otherwise its objects would seem missing, and would be created again.
 */
const factsScript = (files: string, others: string): string =>
  [
    TOOLS,
    'echo "@@ ssh"; echo "$SSH_CONNECTION"',
    LINKS_AND_ROUTING,
    FDB_SCRIPT,
    ipv6Part("routing", ROUTING6),
    RULES6,
    others,
    ...commonParts(files),
    SILENT_PEERS_SCRIPT,
    ALL_RECORDS,
  ].join("\n");

const SCRIPTS = `${RECORD_DIR}/*/*.sh`;

/** What a script must know of a desired state to read the files that it names. */
type FileOwner = Pick<DesiredState, "record" | "items" | "plannedItems">;

/** The files that a desired state names, beside the scripts for boot. */
export const filesOf = ({ items, plannedItems = [] }: Pick<FileOwner, "items" | "plannedItems">): string[] =>
  [...items, ...plannedItems].flatMap((item) => (item.kind === "file" ? [item.path] : []));

const quotePaths = (paths: string[]): string => [...new Set(paths)].map(quote).join(" ");

/** The firewalls of other programs are read at the same time as the other parts, and printed last. */
const withFirewalls = (script: string): string => `{
${FIREWALLS_SCRIPT}
} | {
exec 3<&0 </dev/null
${script}
cat <&3
}`;

/** Reads a host without preparing a change, with the files of these states and of all records. */
export const inspectScript = (states: Pick<FileOwner, "items" | "plannedItems">[]): string =>
  withFirewalls(
    factsScript([BOOT_SCRIPT, SCRIPTS, RECORDED_FILES, quotePaths(states.flatMap(filesOf))].join(" ").trimEnd(), ":"),
  );

export const FACTS_SCRIPT = inspectScript([]);

/** In place of a hash, for scripts of owners without a request: only their presence matters. */
export const NOT_READ = "unread";
const OTHER_SCRIPTS = `echo '@@ files'; printf '${NOT_READ}  %s\\n' ${SCRIPTS}`;

/** Reads a host before a change for these owners, with what could prevent the change. */
export const preflightScript = (states: FileOwner[]): string =>
  withFirewalls(
    [
      factsScript(
        `${BOOT_SCRIPT} ${RECORDED_FILES} ${quotePaths(states.flatMap((state) => [scriptPath(state.record), ...filesOf(state)]))}`,
        OTHER_SCRIPTS,
      ),
      REQUIREMENTS_SCRIPT,
      ...(states.some(({ items }) => items.some((item) => item.kind === "link" && item.wireguard))
        ? [wireguardRequirement]
        : []),
    ].join("\n"),
  );

const MAX_SINGLE_DEVICES = 16;
const MAX_SINGLE_FDBS = 4;

/** Reads back what a change can have changed. On a hub with hundreds of runners that is much less than everything. */
export function readbackScript({ devices, files, isIpv6 }: Required<ReadBack>): string {
  const each = devices.map((device) => `addr show dev ${requireWord(device)}`);
  const few = `echo '@@ changed'; ${ipBatch("-d -force", [OUR_ROUTES4, "rule show", ...each], "2>/dev/null")}`;
  return [
    devices.length > MAX_SINGLE_DEVICES ? LINKS_AND_ROUTING : few,
    devices.length > MAX_SINGLE_FDBS ? FDB_SCRIPT : fdbScript(devices.map(requireWord)),
    ...(isIpv6 ? [ipv6Part("ours", [OUR_ROUTES6, "rule show"]), RULES6] : []),
    ...commonParts(files.map(quote).join(" ")),
  ].join("\n");
}

export function parseFacts(text: string): Facts {
  const facts: Facts = {
    links: new Map(),
    addresses: new Set(),
    routes: [],
    policies: new Set(),
    otherTableRoutes: [],
    routingRules: [],
    chains: new Map(),
    droppingChains: new Set(),
    withoutForwarding: new Set(),
    sysctls: new Map(),
    savedSysctls: new Map(),
    keys: new Map(),
    proxies: new Set(),
    neighbours: new Map(),
    ip6tables: false,
    blockingChains: [],
    missingFeatures: [],
    files: new Map(),
    records: [],
    invalidRecords: [],
    lostRecords: [],
    desiredLinks: [],
    openFiles: new Map(),
  };
  for (const part of text.split(/^@@ /m).slice(1)) {
    const end = part.indexOf("\n");
    const name = part.slice(0, end);
    if (isFactsPart(name)) READERS[name](facts, part.slice(end + 1).trim());
  }
  for (const { items } of facts.records)
    for (const item of items) if (item.kind === "link") undoRename(item, items, facts);
  return facts;
}

/**
 * A device of ours that was renamed keeps its MAC, or its key and port; that of a process, which `wg` knows by its first name alone, the addresses of its
 * record. It gets the name in its record here, so that it, its addresses and its ports are recognized.
 */
function undoRename({ name, mac, type, wireguard }: Link, recorded: Item[], facts: Facts): void {
  if (facts.links.has(name)) return;
  const isSame = (present: string, link: LinkFact): boolean => {
    if (mac !== undefined || wireguard === undefined) return link.mac === mac;
    if (link.type === "tun")
      return recorded.some(
        (item) => item.kind === "address" && item.dev === name && facts.addresses.has(`${item.address} ${present}`),
      );
    return link.wireguard?.publicKey === wireguard.publicKey && link.wireguard?.port === wireguard.port;
  };
  const names = new Set(recorded.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  const [found] = [...facts.links].filter(
    ([present, link]) => !names.has(present) && hasLinkType(type, link.type) && isSame(present, link),
  );
  if (!found) return;
  const [present, link] = found;
  facts.links.delete(present);
  facts.links.set(name, { ...link, renamedTo: present });
  for (const other of facts.links.values()) if (other.master === present) other.master = name;
  facts.addresses = new Set(
    [...facts.addresses].map((text) => text.replace(/ (\S+)$/, (end) => (end === ` ${present}` ? ` ${name}` : end))),
  );
  facts.routes = facts.routes.map((route) => (route.dev === present ? { ...route, dev: name } : route));
}

/** How each part is read; a part may depend on those before it. */
const READERS: Record<FactsPart, (facts: Facts, body: string) => void> = {
  ip: (facts, body) => {
    const [links = "", ...routing] = body.split("\n");
    readLinks(facts, links);
    readRouting(facts, 4, routing.join("\n"));
  },
  changed: (facts, body) => {
    const [ours = "", policies = "", ...links] = body.split("\n");
    // Only devices may be missing in the output. If the first two lines are not routes and rules, nothing is read.
    if ([ours, policies].some((answer) => answer.includes('"ifname"'))) return;
    readOurRouting(facts, 4, `${ours}\n${policies}`);
    readLinks(facts, links.join("\n"));
  },
  fdb: readFdb,
  wg: readWireguard,
  silent: readSilentPeers,
  keys: readPublicKeys,
  neighbours: (facts, body) => {
    for (const [, ip, dev, mac] of body.matchAll(
      /^([0-9a-f.:]+) dev (\S+) (?:proxy|lladdr ([0-9a-f:]{17}) PERMANENT)/gm,
    ))
      if (mac) facts.neighbours.set(`${ip} ${dev}`, mac);
      else facts.proxies.add(`${ip} ${dev}`);
  },
  routing6: (facts, body) => readRouting(facts, 6, body),
  ours6: (facts, body) => readOurRouting(facts, 6, body),
  rules4: (facts, body) => {
    facts.isIptablesLegacy = body !== "" && !body.includes("(nf_tables)");
    readIptables(facts, 4, body);
  },
  rules6: (facts, body) => {
    facts.ip6tables = true;
    readIptables(facts, 6, body);
  },
  sysctls: (facts, body) => {
    for (const [, path, value] of body.matchAll(/^\/proc\/sys\/([\w./-]+):(.*)$/gm))
      facts.sysctls.set(swapDotsAndSlashes(path!), value!);
    for (const [, key, value] of body.matchAll(/^\/var\/lib\/overlay\/former\/([\w.]+):(.*)$/gm))
      facts.savedSysctls.set(key!, [facts.savedSysctls.get(key!) ?? [], value!].flat().join("\n"));
  },
  netconf: readNetconf,
  docker: (facts, body) => Object.assign(facts, { docker: parseDocker(body) }),
  containers: (facts, body) => addContainers(facts.docker, body),
  zone: (facts, body) => {
    facts.zones = { defaultZone: body, permanent: new Map() };
  },
  zones: (facts, body) => Object.assign(facts.zones ?? {}, { runtime: parseZones(body) }),
  permanent: (facts, body) => Object.assign(facts.zones ?? {}, { permanent: parseZones(body) }),
  ssh: (facts, body) => Object.assign(facts, body !== "" && { ssh: parseSshPath(body) }),
  systemd: (facts, body) => Object.assign(facts, { systemd: new Map(body.split("\n\n").map(parseService)) }),
  files: (facts, body) => {
    for (const [, sum, path] of body.matchAll(/^(\S+) [ *](.+)$/gm)) facts.files.set(path!, sum!);
  },
  access: (facts, body) => {
    for (const [, owner, mode, path] of body.matchAll(/^(\d+) (\d+) (\/.+)$/gm))
      facts.openFiles.set(path!, { owner: Number(owner), mode: mode! });
  },
  lacks: (facts, body) => facts.missingFeatures.push(...body.split("\n").filter(Boolean)),
  nft: (facts, body) => facts.blockingChains.push(...parseNftChains(body)),
  legacy4: (facts, body) => facts.blockingChains.push(...(facts.isIptablesLegacy ? [] : parseLegacyChains(4, body))),
  legacy6: (facts, body) => facts.blockingChains.push(...(facts.isIptablesLegacy ? [] : parseLegacyChains(6, body))),
  records: readRecords,
};

const isFactsPart = (name: string): name is FactsPart => Object.hasOwn(READERS, name);

function readRecords(facts: Facts, body: string): void {
  const [names = "", lines = ""] = body.split(/\n\n([\s\S]*)/);
  const texts = new Map(names.split("\n").map((name) => [name, [] as string[]]));
  for (const line of lines.split("\n")) {
    const [, name = "", text = ""] = /^(\/[^/]+\/[^/]+\/[^/]+\/[^/]+\/[^/]+?\.json):(.*)$/.exec(line) ?? [];
    texts.get(name)?.push(text);
  }
  for (const [name, text] of texts) {
    const parsed = parseRecord(name, text.join("\n"));
    if (isInvalidRecord(parsed)) facts.invalidRecords.push(parsed);
    else facts.records.push(parsed);
  }
}

/** `CLIENT PORT SERVER PORT`; a link-local address has its zone behind it. */
function parseSshPath(body: string): SshPath {
  const [client = "", , server = "", port] = body.split(" ").map((word) => word.split("%")[0]!);
  return { client, server, port: Number(port) };
}

function parseService(body: string): [name: string, fact: ServiceFact] {
  const of = (property: string): string => new RegExp(`^${property}=(.*)$`, "m").exec(body)?.[1] ?? "";
  return [of("Id"), { unitFileState: of("UnitFileState"), activeState: of("ActiveState") }];
}

function readIptables(facts: Facts, family: Family, body: string): void {
  let table = "";
  for (const line of body.split("\n")) {
    const [, chain, rule] = /^-A (\S+) (.*)$/.exec(line) ?? [];
    if (line.startsWith("*")) table = line.slice(1).trim();
    else if (line.startsWith(":")) readChain(facts, `${family} ${table}`, line);
    else if (chain) facts.chains.get(`${family} ${table} ${chain}`)?.push(rule!);
  }
}

const RP_FILTER: Record<string, string> = { strict: "1", loose: "2" };

/** Where a family is off, so are all its devices: that is no fault of theirs. */
function readNetconf(facts: Facts, body: string): void {
  const isOff = (family: string): boolean => body.includes(`inet${family === "6" ? family : ""} all forwarding off `);
  for (const [, six, device, forwarding, filter] of body.matchAll(
    /^inet(6?) (\S+) forwarding (on|off) (?:rp_filter (\w+) )?/gm,
  )) {
    const family = six || "4";
    if (forwarding === "off" && !isOff(family)) facts.withoutForwarding.add(`${family} ${device}`);
    if (filter && filter in RP_FILTER) facts.sysctls.set(deviceSysctl(4, device!, "rp_filter"), RP_FILTER[filter]!);
  }
  for (const [, device] of body.matchAll(/^inet6 (\S+) .*\bproxy_neigh on /gm))
    facts.sysctls.set(deviceSysctl(6, device!, "proxy_ndp"), "1");
}

function readChain(facts: Facts, place: string, line: string): void {
  const [name, policy] = line.slice(1).split(" ");
  facts.chains.set(`${place} ${name}`, []);
  if (policy === "DROP") facts.droppingChains.add(`${place} ${name}`);
}

/** A module that is not loaded is probed by creating a device, which is removed at once. */
const probeModule = (type: string, options: string): string =>
  `[ -e /sys/module/${type} ] || { ip link add ovprobe type ${type} ${options} 2>/dev/null && ip link del ovprobe; } || echo ${type}`;

/** Kernel modules and tools that are missing. */
const REQUIREMENTS_SCRIPT = `echo '@@ lacks'; ${probeModule("vxlan", "id 1 dstport 65432")}; ${probeModule("bridge", "")}; command -v ip6tables-restore >/dev/null || echo ip6tables-restore`;
