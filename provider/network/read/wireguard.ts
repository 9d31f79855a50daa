import type { Facts, PeerFact, WireguardFact } from "../model/facts";
import { KEY_FILES, publicKey } from "../model/record";

/**
 * What `wg` prints about a host. It prints private keys with `dump` and `showconf` alone, which are not used, and of preshared keys only whose they are
 * leaves the host. A device whose process does not answer is not among them. `wg show all endpoints` omits the device from all lines but the first.
 */
const FIELDS = ["public-key", "listen-port", "allowed-ips", "endpoints", "persistent-keepalive"] as const;

export const WIREGUARD_SCRIPT = [
  "if command -v wg >/dev/null; then echo '@@ wg'",
  `for d in $(wg show interfaces 2>/dev/null); do for f in ${FIELDS.join(" ")}; do echo "= $d $f"; wg show "$d" $f 2>/dev/null; done; echo "= $d preshared"; wg show "$d" preshared-keys 2>/dev/null | awk '$2 != "(none)" { print $1 }'; echo "= $d threaded"; cat "/sys/class/net/$d/threaded" 2>/dev/null; done`,
  `echo '@@ keys'; for f in ${KEY_FILES}; do [ ! -f "$f" ] || echo "$f $(wg pubkey <"$f" 2>/dev/null)"; done`,
  "fi",
].join("\n");

/** Seconds. With data there is a handshake every 120 s, and after 180 s the keys of the last one are not used any more. */
const SILENT_AFTER = 180;

/**
 * Peers without a handshake for that time, though they are kept alive, that do not answer at their probe address: `DEVICE PUBLIC-KEY`. All are
 * asked at once, each for two seconds. `ping` ends with 1 if there is no answer, with more if it cannot ask.
 */
export const SILENT_PEERS_SCRIPT = [
  "if command -v wg >/dev/null && command -v ping >/dev/null; then echo '@@ silent'; for d in $(wg show interfaces 2>/dev/null); do",
  `{ wg show $d latest-handshakes; echo; wg show $d persistent-keepalive; echo; wg show $d allowed-ips; } 2>/dev/null | awk -v d=$d -v now=$(date +%s) '
  NF == 0 { part++; next }
  part == 0 { old[$1] = now - $2 > ${SILENT_AFTER} }
  part == 1 { kept[$1] = $2 != "off" }
  part == 2 && old[$1] && kept[$1] { for (i = 2; i <= NF; i++) if ($i ~ "^fe80:[0-9a-f:]*/128$") print d, $1, substr($i, 1, length($i) - 4) }'`,
  'done | { while read -r d key ip; do { ping -c 2 -W 1 "$ip%$d" >/dev/null 2>&1; [ $? != 1 ] || echo "$d $key"; } & done; wait; }; fi',
].join("\n");

export function readSilentPeers({ links }: Facts, body: string): void {
  for (const [, device, key] of body.matchAll(/^(\S+) (\S+)$/gm)) {
    const peer = links.get(device!)?.wireguard?.peers.get(key!);
    if (peer) peer.isSilent = true;
  }
}

/** Prints `wireguard` unless a device of it can be made here. */
export const wireguardRequirement =
  "{ command -v wg >/dev/null && { [ -e /sys/module/wireguard ] || { ip link add ovprobe type wireguard 2>/dev/null && ip link del ovprobe; } || { command -v wireguard-go >/dev/null && [ -c /dev/net/tun ]; }; }; } || echo wireguard";

/** `= DEVICE FIELD`, then the value of the device, or a line for each peer. */
export function readWireguard(facts: Facts, body: string): void {
  let [device, field] = ["", ""];
  for (const line of body.split("\n")) {
    const header = /^= (\S+) (\S+)$/.exec(line);
    if (header) [device, field] = [header[1]!, header[2]!];
    else readLine(facts, device, field, line.split("\t"));
  }
}

function readLine(facts: Facts, device: string, field: string, [first = "", second = ""]: string[]): void {
  const link = facts.links.get(device);
  if (!link) return;
  link.wireguard ??= { publicKey: "", port: 0, peers: new Map() };
  if (field === "public-key") link.wireguard.publicKey = publicKey.safeParse(first).data ?? "(none)";
  else if (field === "threaded") {
    if (link.type === "wireguard" && /^[1-9]/.test(first)) link.wireguard.isThreaded = true;
  } else if (field === "listen-port") link.wireguard.port = Number(first);
  else if (publicKey.safeParse(first).success) readPeer(peerOf(link.wireguard, first), field, second);
}

function peerOf({ peers }: WireguardFact, key: string): PeerFact {
  const peer = peers.get(key) ?? { allowedIps: [], keepalive: 0 };
  peers.set(key, peer);
  return peer;
}

function readPeer(peer: PeerFact, field: string, text: string): void {
  if (field === "allowed-ips")
    peer.allowedIps = text
      .split(" ")
      .filter((range) => /^[0-9a-f.:]+\/\d+$/.test(range))
      .sort();
  else if (field === "endpoints" && /^(\[[0-9a-f.:]+\]|[0-9.]+):\d+$/.test(text)) peer.endpoint = text;
  else if (field === "preshared") peer.hasPresharedKey = true;
  else if (field === "persistent-keepalive") peer.keepalive = text === "off" ? 0 : Number(text);
}

/** `FILE PUBLIC-KEY`, without the latter if the file is no key. */
export function readPublicKeys(facts: Facts, body: string): void {
  for (const [, path, key = ""] of body.matchAll(/^(\/var\/lib\/overlay\/[^/ ]+\/tunnel(?:-1)?\.key) ?(\S*)$/gm))
    facts.keys.set(path!, publicKey.safeParse(key).data ?? "");
}
