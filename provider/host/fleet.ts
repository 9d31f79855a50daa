import { z } from "zod";
import { addressBits, familyOf, parseIp, tryParseIp } from "../addressing/ip";
import { isInterfaceName } from "../addressing/layout";
import { OverlayError } from "../errors";
import { renderMakeKey, renderPublicKey } from "../network/kinds/wireguard";
import { boundedArray, parseHostJson, publicKey } from "../network/model/record";
import type { Underlay } from "../network/plan/hub";
import { requireWord } from "../network/render/shell";
import {
  type Connection,
  connectionName,
  type Host,
  type Hosts,
  hostId,
  NO_PHASE,
  type Phase,
  type Report,
} from "./connection";
import { nameHostInErrors } from "./reconcile/host-state";
import type { Reconciler } from "./reconcile/reconciler";
import type { ApplyRequest, CheckRequest, InspectResult } from "./reconcile/requests";
import { checkPrivateKey } from "./ssh/dial";
import { busyboxError } from "./ssh/shell-errors";

/** Credentials for resources that have none, or whose own no longer work. */
export type ConnectionDefaults = Partial<Omit<Connection, "host">>;

/**
 * Gives access to all hosts: connections with defaults, one underlay query per host for the whole
 * run (twenty runners query the same hub), and the reconciler. `openPhase`: for the caller, who is told what is being done.
 */
export function createFleet(
  hosts: Hosts,
  reconciler: Reconciler,
  defaults: ConnectionDefaults,
  openPhase: () => Phase = () => NO_PHASE,
): Fleet {
  const answers = new Map<string, Promise<Underlay>>();
  const seen = new Map<string, Connection>();
  const keyChecks = new Map<string, Promise<void>>();

  async function hostOf(connection: Connection, report: Report): Promise<Host> {
    report(`connecting to ${connectionName(connection)}`);
    const full = { ...defaults, ...connection };
    const key = hostId(full);
    const fallbacks = [seen.get(key), { ...connection, ...defaults }].filter((c) => c !== undefined);
    const host = await hosts.connect(full, fallbacks);
    if (!seen.has(key)) seen.set(key, full);
    return host;
  }

  /** Does `work` with the host, and tells the caller about it. */
  async function withHost<T>(connection: Connection, work: (host: Host, report: Report) => Promise<T>): Promise<T> {
    const { report, end } = openPhase();
    try {
      return await work(await hostOf(connection, report), report);
    } finally {
      end();
    }
  }

  async function readOnce(host: Host, question: UnderlayQuestion): Promise<Underlay> {
    const key = JSON.stringify([host.id, question]);
    const answer = answers.get(key) ?? readUnderlay(host, question);
    answers.set(key, answer);
    answer.catch(() => answers.delete(key));
    return answer;
  }

  /** Once for all hosts with the same credentials: to decrypt a key takes time. */
  function checkKey(connection: Connection): Promise<void> {
    const full = { ...defaults, ...connection };
    const { privateKey, privateKeyPath, privateKeyPassword, proxy } = full;
    const id = JSON.stringify([privateKey, privateKeyPath, privateKeyPassword, proxy]);
    const check = keyChecks.get(id) ?? checkPrivateKey(full);
    keyChecks.set(id, check);
    return check;
  }

  return {
    checkKey,
    ask: (connection, question) => withHost(connection, async (host) => readOnce(host, await question)),
    check: (connection, request) =>
      withHost(connection, (host, report) => reconciler.check(host, { ...request, report })),
    apply: (connection, request) =>
      withHost(connection, (host, report) => reconciler.apply(host, { ...request, report })),
    inspect: (connection, request) =>
      withHost(connection, (host, report) => reconciler.inspect(host, { ...request, report })),
    wasWritten: (connection, uid) => reconciler.wasWritten(hostId({ ...defaults, ...connection }), uid),
    run: (connection, script) =>
      withHost(connection, (host, report) => {
        report(`verifying with packets from ${host.name}`);
        return host.exec(script, "trying packets");
      }),
  };
}

/** The hosts, as the lifecycle uses them. */
export interface Fleet {
  /** Throws SSH_AUTH if its private key cannot be read. Contacts no host. */
  checkKey(connection: Connection): Promise<void>;
  /** Dials the host while the question is still unknown. */
  ask(connection: Connection, question: Promise<UnderlayQuestion>): Promise<Underlay>;
  /** Throws what an apply would be refused with. Changes nothing. */
  check(connection: Connection, request: CheckRequest): Promise<InspectResult>;
  apply(connection: Connection, request: ApplyRequest): Promise<InspectResult>;
  inspect(connection: Connection, request: CheckRequest): Promise<InspectResult>;
  /** Whether this process has begun to write to the host for the owner with this uid. */
  wasWritten(connection: Connection, uid: string): boolean;
  run(connection: Connection, script: string): Promise<{ code: number; stdout: string; stderr: string }>;
}

/** Which underlay address of a host to look for: the one that the user gave, or the one that it uses towards a peer. */
export interface UnderlayQuestion {
  underlayIp?: string | undefined;
  toward?: string | undefined;
  /** A static address that it is to carry: the answer has the device in whose subnet it is. */
  carries?: string | undefined;
  /** The file of its key for tunnels: the answer has the public key, if there is one. */
  keyFile?: string | undefined;
  /** Make the key if there is none. */
  makeKey?: boolean | undefined;
}

const rawAddressLink = z.object({
  ifname: z.string(),
  mtu: z.int().min(0),
  addr_info: boundedArray(z.object({ local: z.string().optional(), prefixlen: z.int().min(0).max(128).default(128) }))
    .default([])
    .transform((all) => all.flatMap(({ local, prefixlen }) => (isAddress(local) ? [{ local, prefixlen }] : []))),
});

const rawRouteGet = z.object({ prefsrc: z.string().optional() });

type RawAddressLink = z.output<typeof rawAddressLink>;

const isAddress = (text: string | undefined): text is string => text !== undefined && tryParseIp(text) !== undefined;

/** `SSH_CONNECTION`, the public key, then a line for each question. */
function parseAnswers(stdout: string, isRouteAsked: boolean) {
  const [ssh = "", key = "", ...answers] = stdout.split("\n").filter((line, i) => i < 2 || line !== "");
  const [found] = isRouteAsked ? parseHostJson(boundedArray(rawRouteGet), answers.shift() ?? "") : [];
  return {
    prefsrc: found?.prefsrc,
    ssh: ssh.split(" ")[2],
    publicKey: publicKey.safeParse(key).data,
    links: parseHostJson(boundedArray(rawAddressLink), answers.join("\n")),
  };
}

/** Without a peer, the server's address of the SSH connection is its underlay address. */
export async function readUnderlay(host: Host, question: UnderlayQuestion): Promise<Underlay> {
  const route = question.toward ? `route get ${requireWord(question.toward)}\n` : "";
  const { code, stdout, stderr } = await host.exec(
    `echo "\${SSH_CONNECTION:-}"\n${keyScript(question)}\nip -j -batch - <<'END'\n${route}addr show\nEND`,
    "asking for its addresses",
  );
  if (code === NO_KEY) throw noKeyError(host, stderr);
  if (code !== 0) {
    const busybox = busyboxError(host.name, stderr);
    if (busybox) throw busybox;
    throw new OverlayError(
      "HOST_COMMAND_FAILED",
      `${host.name} did not report which address it uses${question.toward ? ` towards ${question.toward}` : ""}: exit code ${code}, ${stderr.trim() || "no message"}.`,
      "Give the host a route to its peer, or name its address (underlayIp, hubUnderlayIp).",
    );
  }
  const {
    prefsrc,
    ssh,
    publicKey: key,
    links: all,
  } = nameHostInErrors(host, () => parseAnswers(stdout, question.toward !== undefined));
  const underlayIp = question.underlayIp ?? prefsrc ?? ssh ?? "";
  // The output of one host becomes part of commands for another one.
  if (tryParseIp(underlayIp) === undefined) throw noUnderlayAddressError(host, underlayIp, []);
  const uplink = question.carries ? findUplink(question.carries, all) : undefined;
  return {
    underlayIp,
    underlayMtu: findUnderlayMtu(host, underlayIp, all),
    ...(uplink && { uplink }),
    ...(key && { publicKey: key }),
  };
}

const NO_KEY = 65;

/** A line with the public key of the host, or an empty one. */
function keyScript({ keyFile, makeKey }: UnderlayQuestion): string {
  if (keyFile === undefined) return "echo";
  const make = makeKey ? `${renderMakeKey(keyFile)} || exit ${NO_KEY}; ` : "";
  return `${make}echo "$(${renderPublicKey(keyFile)} 2>/dev/null)"`;
}

const noKeyError = ({ name }: Host, stderr: string): OverlayError =>
  /wg: .*not found/.test(stderr)
    ? new OverlayError(
        "HOST_TOOL_MISSING",
        `${name} has no \`wg\`, with which it makes its key for WireGuard.`,
        "Install it there (Debian: apt-get install wireguard-tools).",
      )
    : new OverlayError(
        "HOST_COMMAND_FAILED",
        `${name} could not make its key for WireGuard: ${stderr.trim() || "no message"}.`,
        "Look there for a full or read-only disk.",
      );

/**
 * The device with the smallest network that has the address in it; a network of one address is none. Its name becomes part of
 * commands, and the kernel allows nearly any name.
 */
function findUplink(address: string, links: RawAddressLink[]): string | undefined {
  const point = parseIp(address);
  const width = addressBits(familyOf(point));
  const named = links.filter(({ ifname }) => isInterfaceName(ifname));
  const networks = named.flatMap(({ ifname, addr_info }) =>
    addr_info
      .filter(({ local, prefixlen }) => prefixlen < width && isInSubnet(parseIp(local), width - prefixlen, point))
      .map(({ prefixlen }) => ({ ifname, prefixlen })),
  );
  return networks.sort((a, b) => b.prefixlen - a.prefixlen)[0]?.ifname;
}

const isInSubnet = (member: bigint, bits: number, point: bigint): boolean =>
  familyOf(member) === familyOf(point) && member >> BigInt(bits) === point >> BigInt(bits);

function findUnderlayMtu(host: Host, address: string, links: RawAddressLink[]): number {
  const link = links.find(({ addr_info }) => addr_info.some(({ local }) => local === address));
  if (link) return link.mtu;
  throw noUnderlayAddressError(
    host,
    address,
    links.flatMap(({ addr_info }) => addr_info.map(({ local }) => local)),
  );
}

const noUnderlayAddressError = (host: Host, address: string, has: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `${host.name} has no underlay address ${JSON.stringify(address)}${has.length > 0 ? `; it has ${has.join(", ")}` : ""}.`,
    "Name one of its addresses (underlayIp, hubUnderlayIp).",
  );
