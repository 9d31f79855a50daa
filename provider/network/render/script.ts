import { invertStep, renderSteps } from "../kinds";
import { acceptPeerRule, INPUT, iptablesTool, TABLES } from "../kinds/firewall";
import type { ScriptParts } from "../kinds/kind";
import type { Facts } from "../model/facts";
import type { Address, HostRecord, Step } from "../model/items";
import { formatRecord, RECORD_DIR, recordPath } from "../model/record";
import { type FileToWrite, LOCK_DIR, quote, renderWriteFiles, textFile, WARNING_PREFIX } from "./shell";

/**
 * The whole change of a host as one script. It writes all files first, and ends if it cannot: no item
 * of ours exists without a record, and no setting is changed before its former value is saved. Then it adds rules, and ends if it
 * cannot: without them, devices and forwarding would let everything pass. Rules are removed last, and not while a device is there that was to be removed.
 * `invalidFiles`: files in place of records that are not records; they are renamed.
 */
export function renderChange(steps: Step[], records: HostRecord[], invalidFiles: string[] = []): string {
  const lines = renderSteps(steps);
  const writes = [...records.map(recordFile), ...lines.writes];
  return [
    "rc=0",
    ...invalidFiles.map((file) => `mv ${quote(file)} ${quote(file)}.invalid-$(date -u +%Y%m%dT%H%M%SZ) || exit 1`),
    ...(writes.length > 0 ? [`${renderWriteFiles(writes)} || exit 1`] : []),
    ...lines.saves.map((line) => `${line} || exit 1`),
    ...renderRestores(lines.firewall, "", RULES_FAILED),
    ...renderOtherParts(lines),
    ...renderRestores(lines.removedRules, unlessStillThere(steps), "rc=1"),
    ...renderEffects(steps),
    "exit $rc",
  ].join("\n");
}

/** The commands that revert steps which cut SSH. A failure does not stop them: the next one may let SSH through. */
export function renderRevert(steps: Step[], before: Facts): string {
  const reverse = invertSteps(steps, before);
  const lines = renderSteps(reverse);
  return [
    "rc=0",
    ...renderRestores(lines.firewall, "", "rc=1"),
    ...renderOtherParts(lines),
    ...renderRestores(lines.removedRules, "", "rc=1"),
    ...renderEffects(reverse),
    "exit $rc",
  ].join("\n");
}

const RULES_FAILED =
  "{ echo 'The firewall rules could not be added, so devices and forwarding were not changed.' >&2; exit 1; }";

/** A condition before the command that removes rules; empty if no device is removed for good. */
function unlessStillThere(steps: Step[]): string {
  const namesOf = (isMeant: (step: Step) => boolean): string[] =>
    steps.filter(isMeant).flatMap(({ item }) => (item.kind === "link" ? [item.name] : []));
  const added = namesOf(({ verb }) => verb === "add");
  const removed = namesOf(({ verb }) => verb === "remove").filter((name) => !added.includes(name));
  return removed.map((name) => `[ ! -e /sys/class/net/${name} ] && `).join("");
}

const renderOtherParts = ({ files, shell, ip, late }: ScriptParts): string[] => [
  ...[...files, ...shell].map((line) => `${line} || rc=1`),
  ...(ip.length > 0 ? [hereDocument("ip -force -batch -", ip, "rc=1")] : []),
  ...late.map((line) => `${line} || rc=1`),
];

const renderEffects = (steps: Step[]): string[] => [
  ...flushConntrack(steps),
  ...renderPeerExpiry(steps),
  ...renderAnnouncements(steps),
];

/** After a change was verified: records reduced to what is present, and records without items removed. */
export function renderRecords(final: HostRecord[], gone: Omit<HostRecord, "items">[]): string {
  const folders = [...new Set(gone.map(({ network }) => quote(`${RECORD_DIR}/${network}`)))].join(" ");
  return [
    ...(final.length > 0 ? [`${renderWriteFiles(final.map(recordFile))} || exit 1`] : []),
    ...gone.map((record) => {
      const file = quote(recordPath(record));
      return `rm -f ${file} ${file}.tmp ${file}.invalid-* || exit 1`;
    }),
    ...(gone.length > 0 ? [`rmdir ${RECORD_DIR}/former ${folders} ${RECORD_DIR} 2>/dev/null; :`] : []),
  ].join("\n");
}

const recordFile = (record: HostRecord): FileToWrite => textFile(recordPath(record), formatRecord(record));

const hereDocument = (command: string, lines: string[], otherwise: string): string =>
  `${command} <<'END' || ${otherwise}\n${lines.join("\n")}\nEND`;

/** All rules of a family in one call. */
const renderRestores = (firewall: ScriptParts["firewall"], condition: string, otherwise: string): string[] =>
  ([4, 6] as const).flatMap((family) => {
    const tables = TABLES.flatMap((table) => {
      const lines = firewall.get(`${family} ${table}`);
      return lines ? [`*${table}`, ...lines, "COMMIT"] : [];
    });
    const command = `${condition}${iptablesTool(family)}-restore --noflush -w 10`;
    return tables.length > 0 ? [hereDocument(command, tables, otherwise)] : [];
  });

export function renderAnnouncements(steps: Step[]): string[] {
  const arrived = steps.flatMap(({ verb, item }) =>
    item.kind === "address" && item.announce && verb !== "remove" ? [item] : [],
  );
  if (arrived.length === 0) return [];
  return [ANNOUNCE, ...arrived.map((item) => `announce ${item.announce} ${withoutPrefix(item)}`)];
}

/** Deletes connections from connection tracking. Without `conntrack` they expire when their client is silent for a while. It fails if there are none. */
export function flushConntrack(steps: Step[]): string[] {
  const flows = steps.flatMap(({ item }) => (item.kind === "rule" && item.flows ? [item.flows] : []));
  const forget = flows.map(
    ({ protocol, ip, port }) =>
      `! command -v conntrack >/dev/null || conntrack -D -p ${protocol} --orig-dst ${ip} --orig-port-dst ${port} >/dev/null 2>&1 || :`,
  );
  return [...new Set(forget)];
}

/** Long enough for the peer to be changed by the same run. */
const PEER_EXPIRY_SECONDS = 60;

/** Peers with a new address are accepted from their former one for a while: see plan/this-host.ts. */
export function renderPeerExpiry(steps: Step[]): string[] {
  const peers = steps.flatMap(({ formerPeer }) => formerPeer ?? []);
  return peers.map(({ remote, port }) => {
    const tool = remote.includes(":") ? "ip6tables" : "iptables";
    const isNeeded = `ip -d link show type vxlan | grep -q ' remote ${remote} '`;
    const remove = `${tool} -w 10 -D ${INPUT.chain} ${acceptPeerRule(remote, port)}`;
    return `( sleep ${PEER_EXPIRY_SECONDS}; ${isNeeded} || ${remove} ) >/dev/null 2>&1 </dev/null &`;
  });
}

export const parseWarnings = (stderr: string): string[] =>
  stderr.split("\n").flatMap((line) => (line.startsWith(WARNING_PREFIX) ? [line.slice(WARNING_PREFIX.length)] : []));

const withoutPrefix = ({ address }: Address): string => address.split("/")[0]!;

/** An unsolicited neighbour advertisement to all nodes: `override`, with the device's own link-layer address. */
const ADVERTISE = `
import socket, struct, sys
device, address = sys.argv[1:]
mac = bytes.fromhex(open(f"/sys/class/net/{device}/address").read().strip().replace(":", ""))
raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(device))
raw.bind((address, 0))
target = socket.inet_pton(socket.AF_INET6, address)
raw.sendto(struct.pack("!BBHI", 136, 0, 0, 0x20000000) + target + b"\\2\\1" + mac, ("ff02::1", 0))
`.trim();

/**
 * `announce DEVICE ADDRESS`. arping is one name for three programs: Habets' takes -i and -S, iputils' and busybox' -I; two
 * of them wait for answers that cannot come, so it runs in the background. Again after 1, 3 and 7 seconds, while the
 * host is being cleaned that had it before and still answers for it, but not once the address has left again.
 */
const ANNOUNCE = `announce() {
  command=
  case $2 in
  *:*)
    if command -v ndsend >/dev/null; then command="ndsend $2 $1"
    elif command -v python3 >/dev/null; then command="python3 -c \\"\\$advertise\\" $1 $2"; fi ;;
  *)
    arping=$(command -v arping) || { busybox arping --help >/dev/null 2>&1 && arping='busybox arping'; } || arping=
    case "$($arping 2>&1)" in
    *Habets*) command="$arping -q -U -c 1 -w 0.1 -i $1 -S $2 $2" ;;
    ?*) command="$arping -q -U -c 1 -w 1 -I $1 $2" ;;
    esac ;;
  esac
  if [ -z "$command" ]; then
    echo '${WARNING_PREFIX}'"neighbours on $1 were not notified that this host now has $2, and may send to the former host until their caches expire. Install arping there (for IPv6 python3 or ndsend)."
    return
  fi
  for wait in 0 1 2 4; do
    sleep $wait
    [ -n "$(ip -o addr show to $2)" ] && eval "$command"
  done >/dev/null 2>&1 </dev/null &
}
advertise='${ADVERTISE}'`;

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
const invertSteps = (steps: Step[], before: Facts): Step[] =>
  [...steps].reverse().flatMap((step) => invertStep(step, before));
