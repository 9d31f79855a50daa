import { bootSteps, creationRank, renderSteps } from "../kinds";
import { sha256 } from "../kinds/file";
import { TABLES } from "../kinds/firewall";
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
    ...links.map(({ name, mac = "" }) => `ours ${name} ${quote(mac)} || return 1`),
    heredoc("firewall", rules, " || return 0"),
    ...[...saves, ...shell].map((line) => `${line} || rc=1`),
    ...(ip.length > 0 ? [heredoc("change", [...new Set(ip)])] : []),
    ...late.map((line) => `${line} || rc=1`),
    "",
  ].join("\n");
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

# ours NAME MAC: the device is not there yet, or is the one that we made
ours() {
  absent "$1" || { read -r mac <"/sys/class/net/$1/address" && [ "$mac" = "$2" ]; } || {
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

# each: runs the scripts of all records
each() {
  failed=0
  for file in ${RECORD_DIR}/*/*.sh; do
    [ -f "$file" ] || continue
    read -r header <"$file"
    case $header in
    '${SCRIPT_HEADER}'*) ;;
    *) echo "$file is of another version of pulumi-overlay: pulumi up --refresh writes it again" >&2; failed=1; continue ;;
    esac
    (rc=0; . "$file" || exit 1; exit "$rc") || failed=1
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

# close: takes our devices down, and ends forwarding that we have switched on
close() {
  ours() {
    absent "$1" || ! read -r mac <"/sys/class/net/$1/address" || [ "$mac" != "$2" ] || ip link set dev "$1" down
  }
  each >/dev/null 2>&1
  for key in ${Object.values(FORWARDING).join(" ")}; do
    ! grep -qsx 0 "${RECORD_DIR}/former/$key" || echo 0 >"/proc/sys/$(printf %s "$key" | tr . /)"
  done
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
rules=$(each 2>/dev/null)
{ restore 4 iptables && restore 6 ip6tables; } || {
  close
  echo "The firewall rules could not be added. Until they can, devices of the overlay networks are down, and forwarding is off if it was off before them." >&2
  exit 1
}
firewall() { :; }
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
