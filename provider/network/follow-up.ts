import { INPUT } from "./chains";
import { acceptPeer } from "./isolation";
import type { Address } from "./items";
import type { Step } from "./steps";

/**
 * What follows a change, once everything stands. It is no item, for nothing of it stays.
 *
 * An address that comes to a host may have been on another one a moment ago, and neighbours believe their caches: 31.8 s
 * were seen without an announcement, 0.07 to 1.1 s with one. Where no tool can announce it, the script says so on a line
 * that begins with WARNING.
 */
export const WARNING = "@@ warning ";

export function announcements(steps: Step[]): string[] {
  const arrived = steps.flatMap(({ verb, item }) =>
    item.kind === "address" && item.announce && verb !== "remove" ? [item] : [],
  );
  if (arrived.length === 0) return [];
  return [ANNOUNCE, ...arrived.map((item) => `announce ${item.announce} ${bare(item)}`)];
}

/** Without the tool flows end by themselves, once their client is silent for a while. It fails when there are none. */
export function forgetting(steps: Step[]): string[] {
  const flows = steps.flatMap(({ item }) => (item.kind === "rule" && item.flows ? [item.flows] : []));
  const forget = flows.map(
    ({ protocol, ip, port }) =>
      `! command -v conntrack >/dev/null || conntrack -D -p ${protocol} --orig-dst ${ip} --orig-port-dst ${port} >/dev/null 2>&1 || :`,
  );
  return [...new Set(forget)];
}

/** Long enough for the other end to be changed by the same run. */
const PEER_EXPIRY_SECONDS = 60;

/** Peers that have got another address are let in by the former one for a while: see local-rules.ts. */
export function expirePeers(steps: Step[]): string[] {
  const peers = steps.flatMap(({ formerPeer }) => formerPeer ?? []);
  return peers.map(({ remote, port }) => {
    const tool = remote.includes(":") ? "ip6tables" : "iptables";
    const isNeeded = `ip -d link show type vxlan | grep -q ' remote ${remote} '`;
    const remove = `${tool} -w 10 -D ${INPUT.chain} ${acceptPeer(remote, port)}`;
    return `( sleep ${PEER_EXPIRY_SECONDS}; ${isNeeded} || ${remove} ) >/dev/null 2>&1 </dev/null &`;
  });
}

export const warningsIn = (stderr: string): string[] =>
  stderr.split("\n").flatMap((line) => (line.startsWith(WARNING) ? [line.slice(WARNING.length)] : []));

const bare = ({ address }: Address): string => address.split("/")[0]!;

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
 * of them wait for answers that cannot come, so all of it is done behind our back. Again after 1, 3 and 7 seconds, while the
 * host is being cleaned that had it before and still answers for it, but not once the address has left again.
 */
const ANNOUNCE = `announce() {
  tell=
  case $2 in
  *:*)
    if command -v ndsend >/dev/null; then tell="ndsend $2 $1"
    elif command -v python3 >/dev/null; then tell="python3 -c \\"\\$advertise\\" $1 $2"; fi ;;
  *)
    arping=$(command -v arping) || { busybox arping --help >/dev/null 2>&1 && arping='busybox arping'; } || arping=
    case "$($arping 2>&1)" in
    *Habets*) tell="$arping -q -U -c 1 -w 0.1 -i $1 -S $2 $2" ;;
    ?*) tell="$arping -q -U -c 1 -w 1 -I $1 $2" ;;
    esac ;;
  esac
  if [ -z "$tell" ]; then
    echo '${WARNING}'"it cannot tell its neighbours on $1 that $2 is here now; until their caches age they may look for it elsewhere. Install arping there (for IPv6 python3 or ndsend)."
    return
  fi
  for wait in 0 1 2 4; do
    sleep $wait
    [ -n "$(ip -o addr show to $2)" ] && eval "$tell"
  done >/dev/null 2>&1 </dev/null &
}
advertise='${ADVERTISE}'`;
