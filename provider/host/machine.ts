import { z } from "zod";
import { familyOf, pointOf, toLine, widthOf } from "../addressing/line";
import { isInterfaceName } from "../addressing/names";
import { OverlayError } from "../errors";
import { listOf, parseAnswer } from "../network/answer";
import type { Machine } from "../network/hub";
import { bareWord } from "../network/quote";
import { onHost } from "./answer";
import { busyboxTool } from "./shell-errors";
import type { Host } from "./types";

/** What to ask a machine: the underlay address that the user gave, or the one that it uses towards a peer. */
export interface MachineQuestion {
  underlayIp?: string | undefined;
  toward?: string | undefined;
  /** An address that it is to carry: on which of its devices would neighbours look for it? */
  carries?: string | undefined;
}

const rawLink = z.object({
  ifname: z.string(),
  mtu: z.int().min(0),
  addr_info: listOf(z.object({ local: z.string().optional(), prefixlen: z.int().min(0).max(128).default(128) }))
    .default([])
    .transform((all) => all.flatMap(({ local, prefixlen }) => (isAddress(local) ? [{ local, prefixlen }] : []))),
});
const rawRoute = z.object({ prefsrc: z.string().optional() });
type RawLink = z.output<typeof rawLink>;

const isAddress = (text: string | undefined): text is string => text !== undefined && pointOf(text) !== undefined;

/** `SSH_CONNECTION`, then a line for each question. */
function parseAnswers(stdout: string, isRouteAsked: boolean) {
  const [ssh = "", ...answers] = stdout.split("\n").filter((line, i) => i === 0 || line !== "");
  const [found] = isRouteAsked ? parseAnswer(listOf(rawRoute), answers.shift() ?? "") : [];
  return {
    prefsrc: found?.prefsrc,
    ssh: ssh.split(" ")[2],
    links: parseAnswer(listOf(rawLink), answers.join("\n")),
  };
}

/** Without a peer, the address at which SSH reached it is its underlay address. */
export async function askMachine(host: Host, question: MachineQuestion): Promise<Machine> {
  const route = question.toward ? `route get ${bareWord(question.toward)}\n` : "";
  const { code, stdout, stderr } = await host.exec(
    `echo "\${SSH_CONNECTION:-}"\nip -j -batch - <<'END'\n${route}addr show\nEND`,
  );
  if (code !== 0) {
    const busybox = busyboxTool(host.name, stderr);
    if (busybox) throw busybox;
    throw new OverlayError(
      "HOST_COMMAND_FAILED",
      `${host.name} could not say which address it uses${question.toward ? ` towards ${question.toward}` : ""}: exit code ${code}, ${stderr.trim() || "no message"}.`,
      "Give the machine a route to its peer, or name its address (underlayIp, hubUnderlayIp).",
    );
  }
  const { prefsrc, ssh, links: all } = onHost(host, () => parseAnswers(stdout, question.toward !== undefined));
  const underlayIp = question.underlayIp ?? prefsrc ?? ssh ?? "";
  // What one machine says goes into commands for another one.
  if (pointOf(underlayIp) === undefined) throw noAddress(host, underlayIp, []);
  const uplink = question.carries ? uplinkOf(question.carries, all) : undefined;
  return { underlayIp, underlayMtu: mtuOf(host, underlayIp, all), ...(uplink && { uplink }) };
}

/**
 * The device with the smallest network that has the address in it; a network of one address is none. Its name goes into
 * commands, and the kernel lets a name be nearly anything.
 */
function uplinkOf(address: string, links: RawLink[]): string | undefined {
  const point = toLine(address);
  const width = widthOf(familyOf(point));
  const named = links.filter(({ ifname }) => isInterfaceName(ifname));
  const networks = named.flatMap(({ ifname, addr_info }) =>
    addr_info
      .filter(({ local, prefixlen }) => prefixlen < width && contains(toLine(local), width - prefixlen, point))
      .map(({ prefixlen }) => ({ ifname, prefixlen })),
  );
  return networks.sort((a, b) => b.prefixlen - a.prefixlen)[0]?.ifname;
}

const contains = (member: bigint, bits: number, point: bigint): boolean =>
  familyOf(member) === familyOf(point) && member >> BigInt(bits) === point >> BigInt(bits);

function mtuOf(host: Host, address: string, links: RawLink[]): number {
  const link = links.find(({ addr_info }) => addr_info.some(({ local }) => local === address));
  if (link) return link.mtu;
  throw noAddress(
    host,
    address,
    links.flatMap(({ addr_info }) => addr_info.map(({ local }) => local)),
  );
}

const noAddress = (host: Host, address: string, has: string[]): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `${host.name} has no underlay address ${JSON.stringify(address)}${has.length > 0 ? `; it has ${has.join(", ")}` : ""}.`,
    "Name one of its addresses (underlayIp, hubUnderlayIp).",
  );
