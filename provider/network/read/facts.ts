import { z } from "zod";
import type { Family } from "../../addressing/ip";
import { addContainers, DOCKER_FACTS, parseDocker } from "../kinds/docker";
import { parseZones, ZONE_FACTS } from "../kinds/zone";
import type { Facts, LinkFact, ServiceFact, SshPath } from "../model/facts";
import { listOf, parseAnswer } from "../model/host-json";
import type { HostRecord } from "../model/items";
import { BOOT_SCRIPT, RECORDS, SERVICES, scriptPath, swapped, unitPath } from "../model/paths";
import { isInvalid, parseRecord } from "../model/record";
import { bareWord, quote } from "../render/shell";
import { BARRIER_FACTS, legacyBarriers, nftBarriers } from "./blocking-firewalls";
import { OUR_ROUTES4, OUR_ROUTES6, ROUTING4, ROUTING6, readOurRouting, readRouting } from "./routing";

const TOOLS =
  "for tool in ip iptables-save iptables-restore sha256sum; do command -v $tool >/dev/null || { echo $tool >&2; exit 127; }; done";
const IF_V6 = "[ ! -e /proc/sys/net/ipv6 ] ||";

/** Several questions to one `ip`, which answers each with a line: starting it costs more than what it does. */
const asked = (options: string, questions: string[], otherwise: string): string =>
  `ip -j ${options} -batch - <<'END' ${otherwise}\n${questions.join("\n")}\nEND`;

/** Devices with their addresses, and IPv4 by the same process: it knows their names then, which else it asks for route by route. */
const MACHINE = `echo '@@ machine'; ${asked("-d", ["addr show", ...ROUTING4], "|| exit 1")}`;
const v6 = (part: string, questions: string[]): string =>
  `echo; echo '@@ ${part}6'; answers=$(${IF_V6} ${asked("-6", questions, "")}\n) || exit 1; echo "$answers"`;

const FORWARDINGS = `/proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding ${RECORDS}/former/net.ipv4.ip_forward ${RECORDS}/former/net.ipv6.conf.all.forwarding`;
/** Of every device, which on a hub takes its time: only where a router was heard, or something was changed about it. */
const LISTENING = `set -- ${RECORDS}/former/*.accept_ra; case "$answers$1" in *'"ra"'* | *[!*].accept_ra) grep -sH . /proc/sys/net/ipv6/conf/*/accept_ra ;; esac`;

const RULES6 =
  "if [ -e /proc/sys/net/ipv6 ] && command -v ip6tables-save >/dev/null; then echo '@@ rules6'; ip6tables-save || exit 1; fi";

/** What does not grow with the number of runners, but for the sums of these files. */
const rest = (files: string): string[] => [
  "echo '@@ rules4'; iptables-save || exit 1",
  `echo '@@ sysctls'; grep -sH . ${FORWARDINGS}; ${LISTENING}`,
  `echo '@@ files'; sha256sum ${files} ${SERVICES.map(unitPath).join(" ")} 2>/dev/null`,
  `[ ! -d /run/systemd/system ] || { echo '@@ systemd'; systemctl show -p Id -p UnitFileState -p ActiveState ${SERVICES.join(" ")} || exit 1; }`,
  DOCKER_FACTS,
  ZONE_FACTS,
];

/**
 * The names of all files, an empty line, then each line behind the name of its file: whatever stands in a file, it cannot be
 * taken for another part, and one that is empty or cannot be read is still seen. One process for all: a hub has a record for
 * each runner.
 */
const ALL_RECORDS = `set -- ${RECORDS}/*/*.json; case $1 in *'/*.json') ;; *) echo '@@ records'; printf '%s\\n' "$@"; echo; grep -aHs '' "$@" || : ;; esac`;

/**
 * Reads everything in one message; each part starts with a line `@@ NAME`. Changes nothing. A part that cannot be read ends
 * it: what is not seen would be taken for missing, and what is missing is made anew.
 */
const factsScript = (files: string, others: string): string =>
  [
    TOOLS,
    'echo "@@ ssh"; echo "$SSH_CONNECTION"',
    MACHINE,
    v6("routing", ROUTING6),
    RULES6,
    others,
    ...rest(files),
    ALL_RECORDS,
  ].join("\n");

const SCRIPTS = `${RECORDS}/*/*.sh`;
export const FACTS_SCRIPT = factsScript(`${BOOT_SCRIPT} ${SCRIPTS}`, ":");

/** Instead of a sum, for scripts of those who have no work here: it matters only that they are there. */
export const UNREAD = "unread";
const OTHERS = `echo '@@ files'; printf '${UNREAD}  %s\\n' ${SCRIPTS}`;

/**
 * Read before the first change of what these have: also what could keep it from working. The firewalls of others are read at
 * the same time as the rest, and said last.
 */
export const preflightScript = (records: Pick<HostRecord, "network" | "uid">[]): string => `{
${BARRIER_FACTS}
} | {
exec 3<&0 </dev/null
${factsScript([BOOT_SCRIPT, ...records.map(scriptPath).map(quote)].join(" "), OTHERS)}
${SURROUNDINGS_FACTS}
cat <&3
}`;

const FEW = 16;

/** What a change can have touched. */
export interface Touched {
  devices: string[];
  files: string[];
  /** Whether anything of it is IPv6, but for addresses, which come with their devices. */
  v6: boolean;
}

/** Enough to judge a change by: less than everything, and on a hub with hundreds of runners much less. */
export function readbackScript({ devices, files, v6: hasV6 }: Touched): string {
  const each = devices.map((device) => `addr show dev ${bareWord(device)}`);
  const few = `echo '@@ changed'; ${asked("-d -force", [OUR_ROUTES4, "rule show", ...each], "2>/dev/null")}`;
  return [
    devices.length > FEW ? MACHINE : few,
    ...(hasV6 ? [v6("ours", [OUR_ROUTES6, "rule show"]), RULES6] : []),
    ...rest(files.map(quote).join(" ")),
  ].join("\n");
}

export function parseFacts(text: string): Facts {
  const facts: Facts = {
    links: new Map(),
    addresses: new Set(),
    routes: [],
    policies: new Set(),
    otherTables: [],
    rules: [],
    chains: new Map(),
    sysctls: new Map(),
    former: new Map(),
    ip6tables: false,
    barriers: [],
    lacks: [],
    files: new Map(),
    records: [],
    invalidRecords: [],
  };
  for (const part of text.split(/^@@ /m).slice(1)) {
    const end = part.indexOf("\n");
    const name = part.slice(0, end);
    if (Object.hasOwn(READERS, name)) READERS[name]!(facts, part.slice(end + 1).trim());
  }
  return facts;
}

/** How each part of the answer is read; a part may lean on those before it. */
const READERS: Record<string, (facts: Facts, body: string) => void> = {
  link: (facts, body) => {
    for (const answer of body.split("\n").filter(Boolean))
      for (const link of parseAnswer(listOf(rawLink), answer)) readLink(facts, link);
  },
  machine: (facts, body) => {
    const [links = "", ...routing] = body.split("\n");
    READERS.link!(facts, links);
    readRouting(facts, 4, routing.join("\n"));
  },
  changed: (facts, body) => {
    const [ours = "", policies = "", ...links] = body.split("\n");
    // Only devices may have no answer. Where the first two are not what was asked for first, nothing was read.
    if ([ours, policies].some((answer) => answer.includes('"ifname"'))) return;
    readOurRouting(facts, 4, `${ours}\n${policies}`);
    READERS.link!(facts, links.join("\n"));
  },
  routing4: (facts, body) => readRouting(facts, 4, body),
  routing6: (facts, body) => readRouting(facts, 6, body),
  ours6: (facts, body) => readOurRouting(facts, 6, body),
  rules4: (facts, body) => {
    facts.legacy = body !== "" && !body.includes("(nf_tables)");
    readRules(facts, 4, body);
  },
  rules6: (facts, body) => {
    facts.ip6tables = true;
    readRules(facts, 6, body);
  },
  sysctls: (facts, body) => {
    for (const [, path, value] of body.matchAll(/^\/proc\/sys\/([\w./-]+):(.*)$/gm))
      facts.sysctls.set(swapped(path!), value!);
    for (const [, key, value] of body.matchAll(/^\/var\/lib\/overlay\/former\/([\w.]+):(\d+)$/gm))
      facts.former.set(key!, value!);
  },
  docker: (facts, body) => Object.assign(facts, { docker: parseDocker(body) }),
  containers: (facts, body) => addContainers(facts.docker, body),
  zone: (facts, body) => Object.assign(facts, { zones: { initial: body, permanent: new Map() } }),
  zones: (facts, body) => Object.assign(facts.zones ?? {}, { runtime: parseZones(body) }),
  permanent: (facts, body) => Object.assign(facts.zones ?? {}, { permanent: parseZones(body) }),
  ssh: (facts, body) => Object.assign(facts, body !== "" && { ssh: sshPath(body) }),
  systemd: (facts, body) => Object.assign(facts, { systemd: new Map(body.split("\n\n").map(serviceFact)) }),
  files: (facts, body) => {
    for (const [, sum, path] of body.matchAll(/^(\S+) [ *](.+)$/gm)) facts.files.set(path!, sum!);
  },
  lacks: (facts, body) => facts.lacks.push(...body.split("\n").filter(Boolean)),
  nft: (facts, body) => facts.barriers.push(...nftBarriers(body)),
  legacy4: (facts, body) => facts.barriers.push(...(facts.legacy ? [] : legacyBarriers(4, body))),
  legacy6: (facts, body) => facts.barriers.push(...(facts.legacy ? [] : legacyBarriers(6, body))),
  records: readRecords,
};

function readRecords(facts: Facts, body: string): void {
  const [names = "", lines = ""] = body.split(/\n\n([\s\S]*)/);
  const texts = new Map(names.split("\n").map((name) => [name, [] as string[]]));
  for (const line of lines.split("\n")) {
    const [, name = "", text = ""] = /^(\/[^/]+\/[^/]+\/[^/]+\/[^/]+\/[^/]+?\.json):(.*)$/.exec(line) ?? [];
    texts.get(name)?.push(text);
  }
  for (const [name, text] of texts) {
    const parsed = parseRecord(name, text.join("\n"));
    if (isInvalid(parsed)) facts.invalidRecords.push(parsed);
    else facts.records.push(parsed);
  }
}

/** Hosts say what they like: only what can be an address, a name or a number is taken. */
const hexText = z.string().regex(/^[0-9a-fA-F.:]{0,80}$/);
const rawLink = z.object({
  ifname: z.string(),
  address: hexText.optional(),
  mtu: z.int().min(0),
  flags: listOf(z.string()),
  master: z.string().optional(),
  linkinfo: z
    .object({
      info_kind: z
        .string()
        .regex(/^[\w-]{0,32}$/)
        .optional(),
      info_data: z
        .object({
          id: z.int().optional(),
          port: z.int().optional(),
          remote: hexText.optional(),
          remote6: hexText.optional(),
          group: hexText.optional(),
          group6: hexText.optional(),
          local: hexText.optional(),
          local6: hexText.optional(),
          learning: z.boolean().optional(),
        })
        .catch({})
        .optional(),
    })
    .optional(),
  addr_info: listOf(z.object({ local: hexText.optional(), prefixlen: z.int().min(0).max(128).optional() })).optional(),
});
type RawLink = z.output<typeof rawLink>;

function linkFact(raw: RawLink): LinkFact {
  const data = raw.linkinfo?.info_data ?? {};
  const type = raw.linkinfo?.info_kind ?? "";
  return {
    type,
    mac: raw.address ?? "",
    mtu: raw.mtu,
    up: raw.flags.includes("UP"),
    ...(raw.master && { master: raw.master }),
    ...(type === "vxlan" && {
      vxlan: {
        vni: Number(data.id),
        port: Number(data.port),
        remote: String(data.remote ?? data.remote6 ?? data.group ?? data.group6 ?? ""),
        local: String(data.local ?? data.local6 ?? ""),
        learning: data.learning === true,
      },
    }),
  };
}

/** The kernel lets a name be nearly anything. A device whose name cannot be in a command is none of ours, and is not seen. */
function readLink(facts: Facts, link: RawLink): void {
  if (!isDeviceText(link.ifname) || (link.master !== undefined && !isDeviceText(link.master))) return;
  facts.links.set(link.ifname, linkFact(link));
  for (const { local, prefixlen } of link.addr_info ?? [])
    if (local !== undefined) facts.addresses.add(`${local}/${prefixlen} ${link.ifname}`);
}

const isDeviceText = (name: string): boolean => /^[A-Za-z0-9_.:@-]{1,15}$/.test(name);

/** `CLIENT PORT SERVER PORT`; a link-local address has its zone behind it. */
function sshPath(body: string): SshPath {
  const [client = "", , server = "", port] = body.split(" ").map((word) => word.split("%")[0]!);
  return { client, server, port: Number(port) };
}

function serviceFact(body: string): [name: string, fact: ServiceFact] {
  const of = (property: string): string => new RegExp(`^${property}=(.*)$`, "m").exec(body)?.[1] ?? "";
  return [of("Id"), { boot: of("UnitFileState"), state: of("ActiveState") }];
}

function readRules(facts: Facts, family: Family, body: string): void {
  let table = "";
  for (const line of body.split("\n")) {
    const [, chain, rule] = /^-A (\S+) (.*)$/.exec(line) ?? [];
    if (line.startsWith("*")) table = line.slice(1).trim();
    else if (line.startsWith(":")) facts.chains.set(`${family} ${table} ${line.slice(1).split(" ")[0]}`, []);
    else if (chain) facts.chains.get(`${family} ${table} ${chain}`)?.push(rule!);
  }
}

/** What a machine must have, and must not have already, for an overlay to come to it. */

/** Only what the kernel does not have loaded is tried out, by a device that is gone at once. */
export const probe = (type: string, options: string): string =>
  `[ -e /sys/module/${type} ] || { ip link add ovprobe type ${type} ${options} 2>/dev/null && ip link del ovprobe; } || echo ${type}`;

export const SURROUNDINGS_FACTS = `echo '@@ lacks'; ${probe("vxlan", "id 1 dstport 65432")}; ${probe("bridge", "")}; command -v ip6tables-restore >/dev/null || echo ip6tables-restore; echo '@@ sysctls'; grep -sH . /proc/sys/net/ipv4/conf/*/rp_filter`;
