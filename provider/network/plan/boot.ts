import { bootSteps, creationRank, renderSteps } from "../kinds";
import { sha256 } from "../kinds/file";
import { iptablesTool, TABLES } from "../kinds/firewall";
import type { Facts } from "../model/facts";
import type { DesiredState, Item, Link, Service } from "../model/items";
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

/** The script of one record, with functions of RESTORE_SCRIPT. It must succeed whether all, some or none of its items are present. */
export function renderBootScript(network: string, items: Item[]): string {
  const links = items.filter((item): item is Link => item.kind === "link");
  const { saves, shell, ip, firewall } = renderSteps(
    items.flatMap(bootSteps).sort((a, b) => creationRank(a.item) - creationRank(b.item)),
  );
  return [
    `# network ${requireWord(network)}`,
    ...links.map(({ name, mac = "" }) => `ours ${name} ${quote(mac)} || return 1`),
    ...[...saves, ...shell].map((line) => `${line} || rc=1`),
    ...(ip.length > 0 ? [heredoc("change", [...new Set(ip)])] : []),
    ...([4, 6] as const).flatMap((family) =>
      TABLES.flatMap((table) => {
        const lines = firewall.get(`${family} ${table}`);
        return lines ? [heredoc(`firewall ${iptablesTool(family)} ${table}`, lines)] : [];
      }),
    ),
    "",
  ].join("\n");
}

const heredoc = (command: string, lines: string[]): string => `${command} <<'END'\n${lines.join("\n")}\nEND`;

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
line_end='
'

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

# firewall TOOL TABLE: lines of TOOL-restore, less those that stand; a chain that was declared again would be emptied
firewall() {
  have=$line_end$("$1-save" -t "$2")$line_end || { rc=1; return; }
  {
    echo "*$2"
    while IFS= read -r line; do
      case $line in
      :*) stands "\${line%% *} " || echo "$line" ;;
      '-I OVERLAY-'*) rule=\${line#-I }; stands "-A \${rule%% *} \${rule#* 1 }$line_end" || printf '%s\\n' "$line" ;;
      -I*) jump_first "\${line#-I }" ;;
      *) stands "$line$line_end" || printf '%s\\n' "$line" ;;
      esac
    done
    echo COMMIT
  } | "$1-restore" --noflush -w 10 || rc=1
}

stands() { case $have in *"$line_end$1"*) ;; *) false ;; esac }

# jump_first 'CHAIN 1 JUMP': to the top, in one go with taking it away from where it stands. OVERLAY-FWD must not overrule Docker:
# its jump goes behind DOCKER-USER, and Docker's rules and others that accept may stand before it
jump_first() {
  chain=\${1%% *} jump=\${1#* 1 } place=1 number=0 copies=0 well=''
  while IFS= read -r rule; do
    rule=\${rule#"-A $chain "}
    if [ "$rule" = "$jump" ]; then copies=$((copies + 1)) well=\${well:-yes}; continue; fi
    number=$((number + 1))
    case "$jump: $rule" in
    '-j OVERLAY-FWD: -j DOCKER-USER') place=$((number + 1)) well=''; [ "$copies" = 0 ] || well=no ;;
    *': -j OVERLAY-'* | '-j OVERLAY-FWD: '*'-j DOCKER'* | '-j OVERLAY-FWD: '*'-j ACCEPT') ;;
    *) well=\${well:-no} ;;
    esac
  done <<RULES
$(printf %s "$have" | grep -e "^-A $chain ")
RULES
  [ "$copies-$well" != 1-yes ] || return 0
  while [ "$copies" -gt 0 ]; do echo "-D $chain $jump"; copies=$((copies - 1)); done
  echo "-I $chain $place $jump"
}

all() {
  failed=0
  for file in ${RECORD_DIR}/*/*.sh; do
    [ -f "$file" ] || continue
    (rc=0; . "$file" || exit 1; exit "$rc") || failed=1
  done
  return "$failed"
}
# systemd-networkd calls itself started before it has turned to its links, and only then takes away what it does not know
for try in 1 2 3 4 5 6 7 8 9 10; do
  networkctl list --no-legend 2>/dev/null | grep -qE ' (pending|initialized) *$' || break
  sleep 1
done
# So does firewalld, before it has flushed all rules; it answers when it is done
! systemctl -q is-active firewalld 2>/dev/null || firewall-cmd --state >/dev/null 2>&1

# Once more where something failed: it may stand on what a later one has made.
all || all
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
