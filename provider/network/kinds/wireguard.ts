import type { Facts, PeerFact, WireguardFact } from "../model/facts";
import { type Endpoint, type Key, type Link, mismatch, type WireguardPeer } from "../model/items";
import { KEY_FILES, RECORD_DIR } from "../model/record";
import { quote } from "../render/shell";
import type { ItemKind, StepOf } from "./kind";

/**
 * WireGuard: the key of a host, its device, and the device's peers. The device is one of the kernel, or of the process wireguard-go where the
 * kernel has none. No command here prints a private key: `wg show DEV dump` and `wg showconf` would.
 */
export const keyKind: ItemKind<Key> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: { publicKey: undefined },
  readFrom: { before: ["keys", "access"], after: ["keys", "access"] },
  readBack: () => ({}),
  disappearsWith: () => undefined,
  compare({ path, publicKey }, { keys, openFiles }) {
    const observed = keys.get(path);
    if (observed === undefined) return undefined;
    const access = openFiles.get(path);
    return [
      ...mismatch("public key", observed, publicKey),
      ...mismatch("owner", access?.owner ?? 0, 0),
      ...(access && Number.parseInt(access.mode, 8) & 0o77 ? [`mode is ${access.mode}, should be 600`] : []),
    ];
  },
  render({ verb, item: { path } }, parts) {
    if (verb === "remove") parts.files.push(`rm -f ${path}`);
    else parts.files.push(`{ ${renderMakeKey(path)} && chown 0:0 ${path} && chmod 600 ${path}; }`);
  },
  bootSteps: () => [], // it is on disk
  invert: undefined, // a key that is gone cannot be made again
  removeFrom: ({ keys }, { path }) => void keys.delete(path),
  inspectCommands: [`ls ${KEY_FILES}`],
};

/**
 * Makes a key unless there is one. Of several processes at once one makes it: a link never replaces a file. It is on disk before it is
 * used, since a host that lost it would need a new one.
 */
export function renderMakeKey(path: string): string {
  const folder = path.slice(0, path.lastIndexOf("/"));
  const temporary = `${path}.$$`;
  const make = [
    `(umask 022 && mkdir -p ${folder})`,
    `(umask 077 && wg genkey >${temporary})`,
    `sync ${temporary}`,
    `{ ln ${temporary} ${path} 2>/dev/null || [ -s ${path} ]; }`,
  ].join(" && ");
  return `{ [ -s ${path} ] || { ${make}; rc_key=$?; rm -f ${temporary}; [ $rc_key = 0 ]; }; }`;
}

/** Prints its public key; nothing if there is no key. */
export const renderPublicKey = (path: string): string => `{ [ ! -s ${path} ] || wg pubkey <${path}; }`;

export const NO_ANSWER = "no handshake for 180 s, and no answer";

export const peerKind: ItemKind<WireguardPeer> = {
  isUnique: true,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["wg", "silent"], after: ["wg"] },
  readBack: ({ dev }) => ({ devices: [dev] }),
  disappearsWith: ({ dev }) => dev,
  compare(item, facts) {
    const observed = findPeer(item, facts);
    if (!observed) return undefined;
    return [
      ...mismatch("allowed IPs", observed.allowedIps.join(","), [...item.allowedIps].sort().join(",")),
      ...mismatch("keepalive", observed.keepalive, item.keepalive),
      ...(observed.hasPresharedKey ? ["it has a preshared key, and should have none"] : []),
      ...compareEndpoint(item, observed, facts),
      ...(observed.isSilent ? [NO_ANSWER] : []),
    ];
  },
  render({ verb, item }, parts) {
    const { dev, publicKey, endpoint, keepalive, allowedIps } = item;
    const reset = verb === "change" ? " preshared-key /dev/null" : "";
    const settings = `endpoint ${quote(formatEndpoint(endpoint))} persistent-keepalive ${keepalive} allowed-ips ${allowedIps.join(",")}`;
    // There is no moment at which a route to the device leads to no peer.
    if (verb === "remove") parts.late.push(`wg set ${dev} peer ${publicKey} remove`);
    else parts.shell.push(`wg set ${dev} peer ${publicKey} ${settings}${reset}`);
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert({ item }, before) {
    const former = findPeer(item, before);
    return [former ? { verb: "add", item: { ...item, ...toPeerItem(former) } } : { verb: "remove", item }];
  },
  removeFrom: ({ links }, { dev, publicKey }) => void links.get(dev)?.wireguard?.peers.delete(publicKey),
  inspectCommands: ["wg show all allowed-ips"],
};

const findPeer = (
  { dev, publicKey }: Pick<WireguardPeer, "dev" | "publicKey">,
  { links }: Facts,
): PeerFact | undefined => links.get(dev)?.wireguard?.peers.get(publicKey);

/** The kernel learns where a peer is from its packets: another endpoint counts only if the planned one has changed, or if there is none. */
function compareEndpoint(item: WireguardPeer, { endpoint }: PeerFact, { records }: Facts): string[] {
  const planned = formatEndpoint(item.endpoint);
  const isNew = records.some(({ items }) =>
    items.some(
      (each) =>
        each.kind === "wgpeer" &&
        each.dev === item.dev &&
        each.publicKey === item.publicKey &&
        formatEndpoint(each.endpoint) !== planned,
    ),
  );
  return endpoint === undefined || isNew ? mismatch("endpoint", endpoint, planned) : [];
}

export const formatEndpoint = ({ ip, port }: Endpoint): string =>
  ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`;

/** What can be set again. */
function toPeerItem({ allowedIps, keepalive, endpoint = "" }: PeerFact): Partial<WireguardPeer> {
  const [, v6, v4, port] = /^(?:\[([0-9a-f:.]+)\]|([0-9.]+)):(\d+)$/.exec(endpoint) ?? [];
  return { allowedIps, keepalive, ...(port && { endpoint: { ip: (v6 ?? v4)!, port: Number(port) } }) };
}

/** The present peers of a device, as they were set. */
export const formerPeers = (dev: string, { links }: Facts): WireguardPeer[] =>
  [...(links.get(dev)?.wireguard?.peers ?? [])].flatMap(([publicKey, fact]) => {
    const { endpoint, allowedIps = [], keepalive = 0 } = toPeerItem(fact);
    return endpoint ? [{ kind: "wgpeer", dev, publicKey, allowedIps, keepalive, endpoint }] : [];
  });

// The device

export const compareWireguard = (observed: WireguardFact | undefined, item: Link): string[] =>
  item.wireguard
    ? [
        ...mismatch("public key", observed?.publicKey, item.wireguard.publicKey),
        ...mismatch("port", observed?.port, item.wireguard.port),
      ]
    : [];

/** We never switch it on, nor off: it is a choice of the host's administrator. */
export const threadedWarnings = ({ links, records }: Facts): string[] =>
  [
    ...new Set(
      records.flatMap(({ items }) =>
        items.flatMap((item) => (item.kind === "link" && item.wireguard ? item.name : [])),
      ),
    ),
  ]
    .filter((name) => links.get(name)?.wireguard?.isThreaded)
    .map(
      (name) =>
        `threaded NAPI is on for ${name}. In kernels without the fix of CVE-2026-52945 the decryption of a peer can stall for good. Switch it off: \`echo 0 >/sys/class/net/${name}/threaded\`.`,
    );

/** Without the kernel's module a process carries the device. systemd starts it again, and then all that is behind the device. */
const userspace = (name: string): string =>
  `if [ -d /run/systemd/system ]; then systemd-run --quiet --collect --no-block --unit=${unitOf(name)} -p Restart=always -p RestartSec=1 -p TimeoutStartSec=infinity -p "ExecStartPost=-/bin/sh ${RECORD_DIR}/boot.sh" "$(command -v wireguard-go)" -f ${name} && ` +
  `for i in 1 2 3 4 5 6 7 8 9 10; do wg show ${name} listen-port >/dev/null 2>&1 && break; sleep 0.3; done; ` +
  `else setsid wireguard-go ${name} >/dev/null 2>&1; fi`;

const unitOf = (name: string): string => `overlay-wireguard-${name}`;

/** The kernel's device, else that of a process; with the key of this host. */
export function renderWireguard({ verb, item: { name, wireguard } }: StepOf<Link>): string[] {
  if (!wireguard) return [];
  const create = `{ [ -e /sys/class/net/${name} ] || ip link add ${name} type wireguard 2>/dev/null || { ${userspace(name)}; }; }`;
  return [
    ...(verb === "add" ? [create] : []),
    `wg set ${name} private-key ${wireguard.keyFile} listen-port ${wireguard.port}`,
    withoutLinkLocalAddress(name),
  ];
}

/** One of the kernel's choice would be the source of probes. */
export const withoutLinkLocalAddress = (name: string): string =>
  `{ ip link set dev ${name} addrgenmode none 2>/dev/null || :; }`;

/** The unit first, which would start the process again. */
export const renderRemoveWireguard = (name: string): string =>
  `{ [ ! -d /run/systemd/system ] || systemctl stop ${unitOf(name)} 2>/dev/null || :; [ ! -e /sys/class/net/${name} ] || ip link del dev ${name}; }`;
