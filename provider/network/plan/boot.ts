import { FAMILIES } from "../../addressing/ip";
import { bootSteps, creationRank, renderSteps } from "../kinds";
import { sha256 } from "../kinds/file";
import { REST, TABLES } from "../kinds/firewall";
import type { Facts } from "../model/facts";
import { type DesiredState, FORWARDING, type Item, type Link, type Service } from "../model/items";
import { BOOT_SCRIPT, RECORD_DIR, SERVICES, scriptPath } from "../model/record";
import { LOCK_DIR, LOCK_HOLDER_FILE, MAKE_LOCK_DIR, quote, requireWord } from "../render/shell";

/**
 * Adds the items that restore an overlay at boot, or after another service has flushed it: beside each record a
 * script that creates its items, rendered by the same code as every change; one script that runs them all under the host's
 * lock; and units of systemd that run that one. All are items, with drift and repair like others; shared ones are
 * removed with the last record.
 */
export function withBootItems({ record, items, persist = false }: DesiredState, facts: Facts): Item[] {
  if (!persist || items.length === 0) return items;
  return [
    ...items,
    { kind: "file", path: BOOT_SCRIPT, content: RESTORE_SCRIPT },
    { kind: "file", path: scriptPath(record), content: renderBootScript(record.network, items) },
    ...(facts.systemd ? UNITS : []),
  ];
}

/** Whether the owner's script on this host creates exactly these items, devices with these MACs. */
export const isBootScriptOf = ({ record }: DesiredState, items: Item[], { files }: Facts): boolean =>
  files.get(scriptPath(record)) === sha256(renderBootScript(record.network, items));

/**
 * The script of one record, with functions of RESTORE_SCRIPT, which runs it twice: up to `firewall` for its rules, then to the end.
 * It must succeed whether all, some or none of its items are present.
 */
export function renderBootScript(network: string, items: Item[]): string {
  const links = items.filter((item): item is Link => item.kind === "link");
  const { saves, shell, ip, late, firewall } = renderSteps(
    items.flatMap(bootSteps).sort((a, b) => creationRank(a.item) - creationRank(b.item)),
  );
  const rules = [...firewall].flatMap(([familyAndTable, lines]) => lines.map((line) => `${familyAndTable} ${line}`));
  return [
    `${SCRIPT_HEADER}${requireWord(network)}`,
    ...links.map(
      (link) => `ours ${link.name} ${[link.mac ?? "", ...proofOf(link, items)].map(quote).join(" ")} || return 1`,
    ),
    heredoc("firewall", rules, " || return 0"),
    ...[...saves, ...shell].map((line) => `${line} || rc=1`),
    ...(ip.length > 0 ? [heredoc("change", [...new Set(ip)])] : []),
    ...late.map((line) => `${line} || rc=1`),
    "",
  ].join("\n");
}

/** What shows that a device with another MAC is ours, as `isOurLink` has it: a pattern for the output of `ip -d address`. */
function proofOf({ name, vxlan }: Link, items: Item[]): string[] {
  if (vxlan) return [`vxlan id ${vxlan.vni} .*dstport ${vxlan.port} `];
  const addresses = items.flatMap((item) => (item.kind === "address" && item.dev === name ? [item.address] : []));
  return addresses.length > 0 ? [`inet6? (${addresses.join("|")}) `] : [];
}

/** The first line of a script of this form. RESTORE_SCRIPT runs no other. */
const SCRIPT_HEADER = "# overlay network, rules first: ";

const heredoc = (command: string, lines: string[], then = ""): string =>
  [`${command} <<'END'${then}`, ...lines, "END"].join("\n");

/** Longer than a conversation can hold the lock. */
const LOCK_WAIT_SECONDS = 150;

const RESTORE_SCRIPT = `# Puts the overlay networks of this machine back. Written by pulumi-overlay, and removed with the last of them.
# Needs no network, may be run at any time, changes only what is missing or wrong, and leaves alone what is not ours.
[ "\${1-}" = locked ] || {
  ${MAKE_LOCK_DIR} || { echo "${LOCK_DIR} is not a directory of root with mode 0700" >&2; exit 1; }
  exec flock -o -w ${LOCK_WAIT_SECONDS} ${LOCK_DIR} sh "$0" locked
}
PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
export PATH LC_ALL
trap 'rm -f ${LOCK_HOLDER_FILE}' EXIT
{ echo "$0"; date -u +%Y-%m-%dT%H:%M:%SZ; } >${LOCK_HOLDER_FILE}

absent() { [ ! -e "/sys/class/net/$1" ]; }

# made NAME MAC [PATTERN]: we made the device, as its MAC shows, or its VNI or address
made() {
  { read -r mac <"/sys/class/net/$1/address" && [ "$mac" = "$2" ]; } ||
    { [ "\${3-}" ] && ip -d address show dev "$1" | grep -qE "$3"; }
}

# ours NAME MAC [PATTERN]: the device is not there yet, or is the one that we made
ours() {
  absent "$1" || made "$@" || {
    echo "$1 is not a device of ours: it is left alone, and so is $file" >&2
    false
  }
}

# change: lines of ip -batch, less those for devices that are there
change() {
  while IFS= read -r line; do
    device=\${line#link add }
    [ "$device" = "$line" ] || absent "\${device%% *}" || continue
    printf '%s\\n' "$line"
  done | ip -force -batch - || rc=1
}

# each: runs the scripts of all records, and \`skipped\` for those that are not run or end early
each() {
  failed=0
  for file in ${RECORD_DIR}/*/*.sh; do
    [ -f "$file" ] || continue
    read -r header <"$file"
    case $header in
    '${SCRIPT_HEADER}'*) ;;
    *) echo "$file is of another version of pulumi-overlay: pulumi up --refresh writes it again" >&2; failed=1; skipped; continue ;;
    esac
    (rc=0; . "$file" || exit 1; exit "$rc") || { failed=1; skipped; }
  done
  return "$failed"
}

# The lines for TOOL-restore of those rules of ours that are missing. Reads TOOL-save, a line "@@", and lines "FAMILY TABLE LINE". A chain that
# was declared again would be emptied.
missing_rules='
function add(line) { out[table] = out[table] line "\\n" }
function place_jump(chain, jump,   i, rule, place, number, copies, well, forward) {
  forward = jump == "-j OVERLAY-FWD"; place = 1; number = 0; copies = 0; well = ""
  for (i = 1; i <= count[table, chain]; i++) {
    rule = rules[table, chain, i]
    if (rule == jump) { copies++; if (well == "") well = "yes"; continue }
    number++
    if (forward && rule == "-j DOCKER-USER") { place = number + 1; well = copies ? "no" : "" }
    else if (rule ~ /^-j OVERLAY-/ || (forward && rule ~ /-j (DOCKER|ACCEPT$)/)) continue
    else if (well == "") well = "no"
  }
  if (copies == 1 && well == "yes") return
  while (copies-- > 0) add("-D " chain " " jump)
  add("-I " chain " " place " " jump)
}
/^@@$/ { isPlanned = 1; next }
!isPlanned && /^\\*/ { table = substr($1, 2); next }
!isPlanned && /^:/ { present[table, substr($1, 2)]; next }
!isPlanned && /^-A / { present[table, $0]; rules[table, $2, ++count[table, $2]] = substr($0, length($2) + 5); next }
!isPlanned { next }
{ table = $2; line = substr($0, length($2) + 4); text = line }
(table, line) in planned { next }
{ planned[table, line] }
$3 == "-I" {
  rule = substr(line, length($4) + 5); sub(/^[0-9]+ /, "", rule)
  if ($4 !~ /^OVERLAY-/) { place_jump($4, rule); next }
  text = "-A " $4 " " rule
}
$3 ~ /^:/ { text = substr($3, 2) }
!((table, text) in present) { add(line) }
END {
  split("${TABLES.join(" ")}", tables)
  for (i = 1; i in tables; i++) if (tables[i] in out) printf "*%s\\n%sCOMMIT\\n", tables[i], out[tables[i]]
}'

# restore FAMILY TOOL: all rules of ours in one go, so that no rule drops what another one is to accept
restore() {
  planned=$(printf '%s\\n' "$rules" | grep "^$1 ") || return 0
  present=$("$2-save") || return
  lines=$(printf '%s\\n' "$present" @@ "$planned" | awk "$missing_rules") || return
  [ -z "$lines" ] || printf '%s\\n' "$lines" | "$2-restore" --noflush -w 10
}

# close: takes the devices of the script $file down, of whatever version it is
close() {
  take_down() { absent "$1" || ! made "$@" || ip link set dev "$1" down; }
  eval "$(sed -n 's/^ours \\(.*\\) || return 1$/take_down \\1/p' "$file")"
}

# end_forwarding: ends what we have switched on, in families without a restored rule that keeps the host from being a router
end_forwarding() {
  for each in ${FAMILIES.map((family) => `'${family} ${FORWARDING[family]}'`).join(" ")}; do
    rest="\${each%% *} filter -A ${REST.chain} " key=\${each#* }
    case $rules in *"$rest"*) continue ;; esac
    { grep -qsx 0 "${RECORD_DIR}/former/$key" || grep -qs "^$rest" ${RECORD_DIR}/*/*.sh; } || continue
    echo 0 >"/proc/sys/$(printf %s "$key" | tr . /)"
  done
}

# lacks_rules: a rule of the script $file is missing. Scripts of another version have lines without family and table.
lacks_rules() {
  { iptables-save; ip6tables-save; } 2>/dev/null | awk '
    !isPlanned { present[$0]; next }
    { sub(/^[46] [a-z]+ /, "") }
    $1 == "-I" { $0 = "-A " $2 substr($0, length("-I " $2 " " $3) + 1) }
    $1 == "-A" && !($0 in present) { isMissing = 1 }
    END { exit !isMissing }' - isPlanned=1 "$file"
}

# systemd-networkd calls itself started before it has turned to its links, and only then takes away what it does not know
for try in 1 2 3 4 5 6 7 8 9 10; do
  networkctl list --no-legend 2>/dev/null | grep -qE ' (pending|initialized) *$' || break
  sleep 1
done
# So does firewalld, before it has flushed all rules; it answers when it is done
! systemctl -q is-active firewalld 2>/dev/null || firewall-cmd --state >/dev/null 2>&1

# Rules first: without them devices and forwarding would let everything pass.
firewall() { cat; false; }
skipped() { :; }
rules=$(each 2>/dev/null)
{ restore 4 iptables && restore 6 ip6tables; } || {
  rules=
  for file in ${RECORD_DIR}/*/*.sh; do close; done
  end_forwarding
  echo "The firewall rules could not be added. Until they can, devices of the overlay networks are down, and forwarding is off if it was off before them." >&2
  exit 1
}
firewall() { :; }
# Without its rules, what a script has made must not stay open.
skipped() {
  lacks_rules || return 0
  echo "Rules of $file are missing: its devices are down." >&2
  close
  end_forwarding
}
# Once more where something failed: it may stand on what a later one has made.
each || each
`;

/** Services whose start, restart or reload removes addresses, routes or rules of other programs. */
const FLUSHING_SERVICES = [
  "systemd-networkd.service",
  "firewalld.service",
  "ufw.service",
  "nftables.service",
  "netfilter-persistent.service",
  "iptables.service",
  "ip6tables.service",
].join(" ");

const UNIT_HEADER = "# Written by pulumi-overlay, and removed with the last of this machine's overlay networks.";

/** Not active after it ran, so that it runs again whenever a unit that wants it is started or restarted. */
const START_UNIT = `${UNIT_HEADER}
[Unit]
Description=Overlay networks of this machine
RequiresMountsFor=${RECORD_DIR}
ConditionPathExists=${BOOT_SCRIPT}
After=network-pre.target networking.service NetworkManager.service ${FLUSHING_SERVICES}
Before=docker.service

[Service]
Type=oneshot
ExecStart=/bin/sh ${BOOT_SCRIPT}
TimeoutStartSec=${4 * LOCK_WAIT_SECONDS}

[Install]
WantedBy=multi-user.target ${FLUSHING_SERVICES}
`;

/** systemd propagates a reload only to active units. */
const RELOAD_UNIT = `${UNIT_HEADER}
[Unit]
Description=Overlay networks of this machine, when others reload
After=${FLUSHING_SERVICES}
ReloadPropagatedFrom=${FLUSHING_SERVICES}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecReload=/bin/sh ${BOOT_SCRIPT}

[Install]
WantedBy=multi-user.target
`;

const UNITS: Service[] = [
  { kind: "service", name: SERVICES[0], unit: START_UNIT, staysActive: false },
  { kind: "service", name: SERVICES[1], unit: RELOAD_UNIT, staysActive: true },
];
