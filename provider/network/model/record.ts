import { z } from "zod";
import { addressBits, familyOf, parseRange, tryParseIp } from "../../addressing/ip";
import { isInterfaceName } from "../../addressing/layout";
import { OverlayError } from "../../errors";
import { tryParseJson } from "../../json";
import type { InvalidRecord } from "./facts";
import type * as items from "./items";

/** Where our files are on a host. */

export const RECORD_DIR = "/var/lib/overlay";
/** Runs the script of every record. */
export const BOOT_SCRIPT = `${RECORD_DIR}/boot.sh`;
/** The first restores everything at boot; the second restores it when services that flush rules or addresses reload. */
export const SERVICES = ["overlay-network.service", "overlay-network-reload.service"] as const;

export const unitPath = (name: string): string => `/etc/systemd/system/${name}`;

/** Of one owner: the network that it is part of, and its uid. */
export interface OwnerKey {
  network: string;
  uid: string;
}

/** The record of an owner. */
export const recordPath = ({ network, uid }: OwnerKey): string => `${RECORD_DIR}/${network}/${uid}.json`;
/** The script that restores the owner's items at boot. */
export const scriptPath = ({ network, uid }: OwnerKey): string => `${RECORD_DIR}/${network}/${uid}.sh`;

export const isInRecordDir = (path: string): boolean => path.startsWith(`${RECORD_DIR}/`);

/** The owner of a record or script, by its path; undefined for other files. */
export function parseOwnerPath(path: string): OwnerKey | undefined {
  const [, network, uid] = /^\/var\/lib\/overlay\/([A-Za-z0-9._:-]+)\/([A-Za-z0-9-]+)\.(?:json|sh)$/.exec(path) ?? [];
  return network && uid ? { network, uid } : undefined;
}

/** The private key of a host for a network's tunnels. A rotation has two: see `slotOf` in plan/tunnels/wireguard.ts. */
export const keyPath = (network: string, slot = 0): string =>
  `${RECORD_DIR}/${network}/tunnel${slot === 0 ? "" : `-${slot}`}.key`;

/** All of them, as a pattern of a shell. */
export const KEY_FILES = `${RECORD_DIR}/*/tunnel*.key`;

/** The scripts for boot: their path alone shows that they are ours. */
export const isBootFile = (path: string): boolean => path === BOOT_SCRIPT || parseOwnerPath(path) !== undefined;

/** As an extended regular expression for `grep`, too. */
const OWN_FILE = "/etc/([A-Za-z0-9_-][A-Za-z0-9._-]*/)*overlay-[A-Za-z0-9._-]+";

/**
 * Which files an item can name, beside the scripts for boot: those in /etc whose name starts with `overlay-`. So a forged
 * record cannot have a file of another program removed, nor our units, which all owners share, or the links that enable them.
 */
export const isOwnPath = (path: string): boolean =>
  path.length < 200 &&
  new RegExp(`^${OWN_FILE}$`).test(path) &&
  !SERVICES.some((name) => path.split("/").some((part) => part === name || part === `${name}.d`));

/** The paths of such files in all records. A file that is no longer desired is in no request. */
export const RECORDED_FILES = `$(grep -aFhs '"/etc/' ${RECORD_DIR}/*/*.json | grep -aoE '${OWN_FILE}')`;

/** A path below /proc/sys is its key with dots and slashes exchanged. */
export const swapDotsAndSlashes = (text: string): string =>
  text.replaceAll(/[./]/g, (mark) => (mark === "." ? "/" : "."));
/** A dot in a device's name is a slash there, as sysctl writes it. */
export const deviceSysctl = (family: items.Route["family"], device: string, name: string): string =>
  `net.ipv${family}.conf.${device.replaceAll(".", "/")}.${name}`;
export const sysctlPath = (key: string): string => `/proc/sys/${swapDotsAndSlashes(key)}`;

/**
 * Parses JSON that a host printed, in the expected form and no other. A host may send millions of wrong elements: lists and objects are
 * read up to the first wrong one, and long texts are not read at all.
 */
export function parseHostJson<S extends z.ZodType>(schema: S, text: string): z.output<S> {
  if (text.length > MAX_JSON_CHARS) throw unexpectedOutputError(`one of its answers has ${text.length} characters`);
  const parsed = schema.safeParse(parseJson(text));
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  throw unexpectedOutputError([...(path.length > 0 ? [path.join(".")] : []), message].join(": "));
}

/** Characters of one JSON text: more than a hub of ten thousand runners needs. */
const MAX_JSON_CHARS = 16 * 1024 * 1024;

/** Elements of one list or object. */
const MAX_ELEMENTS = 250_000;

/** An array, checked up to the first wrong element. */
export const boundedArray = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): z.output<S>[] => {
    if (!Array.isArray(value) || value.length > MAX_ELEMENTS) return addIssue(context, "is not a list, or is too long");
    const elements: z.output<S>[] = [];
    for (const [i, each] of value.entries()) {
      const parsed = element.safeParse(each);
      const issue = parsed.error?.issues[0];
      if (issue) return addIssue(context, issue.message, [i, ...issue.path]);
      elements.push(parsed.data!);
    }
    return elements;
  });

/** An object with any keys, checked up to the first wrong value. */
export const boundedRecord = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): Record<string, z.output<S>> => {
    if (typeof value !== "object" || value === null || Array.isArray(value))
      return addIssue(context, "is not an object");
    const entries = Object.entries(value);
    if (entries.length > MAX_ELEMENTS) return addIssue(context, "has too many keys");
    for (const entry of entries) {
      const parsed = element.safeParse(entry[1]);
      const issue = parsed.error?.issues[0];
      if (issue) return addIssue(context, issue.message, [entry[0], ...issue.path]);
      entry[1] = parsed.data;
    }
    return Object.fromEntries(entries);
  });

function addIssue(context: z.RefinementCtx, message: string, path: PropertyKey[] = []): never {
  context.addIssue({ code: "custom", message, path });
  return z.NEVER;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw unexpectedOutputError((error as Error).message);
  }
}

const unexpectedOutputError = (reason: string): OverlayError =>
  new OverlayError(
    "HOST_COMMAND_FAILED",
    `its output is not in the form of its tools (${reason.slice(0, 300)}).`,
    "Look at `ip -j -d addr show`, `iptables-save` and `docker network inspect` on that host; if they are replaced or altered, treat the host as compromised.",
  );

/**
 * The form of a record on a host. A program with write access there could put anything into one, and what it lists goes into commands:
 * every text is limited to what a planner can create. Nothing here can hold a quote, `$`, a backtick or a line end, and only firewall
 * rules hold blanks.
 */
const textLike = (pattern: RegExp) => z.string().regex(pattern);
const interfaceName = z.string().refine(isInterfaceName, "is not the name of a device");
const ipText = z.string().refine((text) => tryParseIp(text) !== undefined, "is not an address");
const isPrefixed = (text: string): boolean => /^[0-9a-fA-F.:]+\/\d{1,3}$/.test(text);
const cidr = z.string().refine((text) => isPrefixed(text) && parseRange(text) !== undefined, "is not a range");
const addressWithPrefix = z.string().refine((text) => {
  const [ip = "", prefix] = text.split("/");
  const value = tryParseIp(ip);
  return isPrefixed(text) && value !== undefined && Number(prefix) <= addressBits(familyOf(value));
}, "is not an address with a prefix");
const macText = textLike(/^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/);
const port = z.int().min(1).max(65535);
const mtu = z.int().min(68).max(65535);
const routingTable = z.int().min(1).max(0xffffffff);
/** 32 bytes in base 64. */
export const publicKey = textLike(/^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$/);
const keyFile = z
  .string()
  .refine(
    (path) => /^\/var\/lib\/overlay\/[A-Za-z0-9._:-]+\/tunnel(-1)?\.key$/.test(path) && !path.includes("/../"),
    "is not the file of a key",
  );
const family = z.union([z.literal(4), z.literal(6)]);
const chainName = textLike(/^[A-Za-z0-9_][A-Za-z0-9_-]{0,27}$/);
const ownChain = textLike(/^OVERLAY-[A-Z0-9-]{1,20}$/);
const ruleSchema = textLike(/^[A-Za-z0-9!-][A-Za-z0-9 ./:,!_=[\]+-]{0,500}$/);
const zoneRule = textLike(
  /^rule family="ipv[46]" source address="[0-9a-f.:]+(\/\d{1,3})?"( port port="\d{1,5}(-\d{1,5})?" protocol="(tcp|udp|sctp)")? accept$/,
);
/** `net.ipv4.ip_forward`, or one of a device, in which slashes replace the dots of the device's name. */
const sysctlKey = textLike(/^net\.ipv[46]\.(conf\.(?!\/+\.)[A-Za-z0-9_/-]{1,15}\.)?[a-z0-9_]{1,40}$/);
const firewall = { family, table: z.enum(["filter", "mangle", "nat", "raw"]) };

/** A field that is added to an item must be added here. */
type FieldsOf<T> = { [Field in keyof T]-?: z.ZodType };

/** A kind that is added to the items must be added here. */
const ITEMS = {
  sysctl: z.strictObject({
    kind: z.literal("sysctl"),
    key: sysctlKey,
    value: textLike(/^\d{1,10}$/),
  } satisfies FieldsOf<items.Sysctl>),
  link: z.strictObject({
    kind: z.literal("link"),
    name: interfaceName,
    type: z.enum(["vxlan", "wireguard", "bridge", "anchor"]),
    mac: macText.exactOptional(),
    mtu: mtu.exactOptional(),
    master: z.union([z.literal(""), interfaceName]).exactOptional(),
    vxlan: z
      .strictObject({
        vni: z
          .int()
          .min(0)
          .max(2 ** 24 - 1),
        port,
        remote: z.union([z.literal(""), ipText]),
        local: ipText,
      } satisfies FieldsOf<items.Vxlan>)
      .exactOptional(),
    wireguard: z
      .strictObject({
        port,
        keyFile,
        publicKey: publicKey.exactOptional(),
        local: ipText,
      } satisfies FieldsOf<items.Wireguard>)
      .exactOptional(),
    shared: z.literal(true).exactOptional(),
  } satisfies FieldsOf<items.Link>),
  key: z.strictObject({
    kind: z.literal("key"),
    path: keyFile,
    publicKey: publicKey.exactOptional(),
  } satisfies FieldsOf<items.Key>),
  wgpeer: z.strictObject({
    kind: z.literal("wgpeer"),
    dev: interfaceName,
    publicKey,
    allowedIps: z.array(cidr).max(64),
    endpoint: z.strictObject({ ip: ipText, port } satisfies FieldsOf<items.Endpoint>),
    keepalive: z.int().min(0).max(65535),
  } satisfies FieldsOf<items.WireguardPeer>),
  vxpeer: z.strictObject({
    kind: z.literal("vxpeer"),
    dev: interfaceName,
    mac: macText,
    ip: ipText,
    remote: ipText,
  } satisfies FieldsOf<items.VxlanPeer>),
  neighbour: z.strictObject({
    kind: z.literal("neighbour"),
    dev: interfaceName,
    ip: ipText,
  } satisfies FieldsOf<items.Neighbour>),
  address: z.strictObject({
    kind: z.literal("address"),
    dev: interfaceName,
    address: addressWithPrefix,
    announce: interfaceName.exactOptional(),
  } satisfies FieldsOf<items.Address>),
  route: z.strictObject({
    kind: z.literal("route"),
    family,
    dst: z.union([z.literal("default"), cidr]),
    via: ipText.exactOptional(),
    dev: interfaceName.exactOptional(),
    src: ipText.exactOptional(),
    metric: z.int().min(0).max(0xffffffff).exactOptional(),
    table: routingTable.exactOptional(),
  } satisfies FieldsOf<items.Route>),
  policy: z.strictObject({
    kind: z.literal("policy"),
    family,
    from: cidr,
    mark: textLike(/^0x[0-9a-f]{1,8}\/0x[0-9a-f]{1,8}$/),
    table: routingTable,
  } satisfies FieldsOf<items.PolicyRule>),
  docker: z.strictObject({
    kind: z.literal("docker"),
    name: textLike(/^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/),
    bridge: interfaceName,
    mtu,
    subnets: z.array(
      z.strictObject({
        subnet: cidr,
        gateway: ipText,
        hub: ipText,
        range: cidr,
      } satisfies FieldsOf<items.DockerSubnet>),
    ),
    required: z.boolean(),
  } satisfies FieldsOf<items.DockerNetwork>),
  chain: z.strictObject({ kind: z.literal("chain"), ...firewall, chain: ownChain } satisfies FieldsOf<items.Chain>),
  jump: z
    .strictObject({
      kind: z.literal("jump"),
      ...firewall,
      from: chainName,
      chain: ownChain,
      atEnd: z.literal(true).exactOptional(),
      ifPresent: z.literal(true).exactOptional(),
    } satisfies FieldsOf<items.Jump & { ifPresent: true }>)
    .transform(({ ifPresent: _, ...jump }) => jump), // only in records of version 0.1
  rule: z.strictObject({
    kind: z.literal("rule"),
    ...firewall,
    chain: ownChain,
    rule: ruleSchema,
    transient: z.literal(true).exactOptional(),
    flows: z.strictObject({ protocol: z.enum(["tcp", "udp", "sctp"]), ip: ipText, port }).exactOptional(),
  } satisfies FieldsOf<items.FirewallRule>),
  zone: z.strictObject({
    kind: z.literal("zone"),
    interface: interfaceName.exactOptional(),
    hasDocker: z.literal(true).exactOptional(),
    rule: zoneRule.exactOptional(),
    underlay: ipText.exactOptional(),
  } satisfies FieldsOf<items.ZoneEntry>),
  file: z.strictObject({ kind: z.literal("file"), path: z.string() } satisfies FieldsOf<
    Omit<items.FileItem, "content">
  >),
  service: z.strictObject({
    kind: z.literal("service"),
    name: z.enum(SERVICES),
  } satisfies FieldsOf<Omit<items.Service, "unit" | "staysActive">>),
} satisfies { [K in items.Item["kind"]]: z.ZodType };

type ItemSchema = (typeof ITEMS)[keyof typeof ITEMS];
const item = z.discriminatedUnion("kind", Object.values(ITEMS) as [ItemSchema, ...ItemSchema[]]);

/** A network's name, or a static address. */
const network = z
  .string()
  .refine((text) => /^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/.test(text) || tryParseIp(text) !== undefined);

const hostRecord: z.ZodType<items.HostRecord> = z
  .strictObject({
    uid: textLike(/^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/),
    owner: textLike(/^[^\p{Cc}]{1,2000}$/u),
    network,
    name: textLike(/^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$/).exactOptional(),
    store: textLike(/^[A-Za-z0-9._-]{1,64}$/),
    items: boundedArray(item).refine((all) => all.length > 0, "is empty"),
  } satisfies FieldsOf<items.HostRecord>)
  .superRefine((record, context) => {
    const paths = [BOOT_SCRIPT, scriptPath(record)];
    for (const [i, each] of record.items.entries())
      if (each.kind === "file" && !paths.includes(each.path) && !isOwnPath(each.path))
        context.addIssue({ code: "custom", path: ["items", i, "path"], message: "is not a file of this record" });
  });

/** As it is stored in its file. */
export const formatRecord = (record: items.HostRecord): string => `${JSON.stringify(record)}\n`;

export const isInvalidRecord = (parsed: items.HostRecord | InvalidRecord): parsed is InvalidRecord =>
  "reason" in parsed;

const MAX_RECORD_CHARS = 1024 * 1024;

type ParsedRecord = items.HostRecord | InvalidRecord;

/** By file and text. A hub has hundreds of records, and a run reads it several times. */
const parsedRecords = new Map<string, ParsedRecord>();
const MAX_PARSED_RECORDS = 5000;

/** Anything but the record that belongs into this file is returned as invalid, and never used. */
export function parseRecord(file: string, text: string): ParsedRecord {
  const key = `${file}:${text}`;
  const known = parsedRecords.get(key);
  if (known) return known;
  const parsed = parseRecordText(file, text);
  if (parsedRecords.size >= MAX_PARSED_RECORDS) parsedRecords.clear();
  parsedRecords.set(key, parsed);
  return parsed;
}

function parseRecordText(file: string, text: string): ParsedRecord {
  const owner = parseOwnerPath(file);
  const invalid = (reason: string): InvalidRecord => ({ file, ...owner, reason });
  if (text.length > MAX_RECORD_CHARS) return invalid(`it has ${text.length} characters`);
  if (text.trim() === "") return invalid("it is empty or cannot be read");
  const value = tryParseJson(text);
  if (value === undefined) return invalid("it is not JSON");
  const parsed = hostRecord.safeParse(value);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    return invalid([...(issue!.path.length > 0 ? [issue!.path.join(".")] : []), issue!.message].join(": "));
  }
  const { uid, network } = parsed.data;
  if (owner?.uid !== uid || owner.network !== network)
    return invalid(`it is the record of ${uid} in network ${network}`);
  return parsed.data;
}
