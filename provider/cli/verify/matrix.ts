import { requireWord } from "../../network/render/shell";
import type { End } from "./ends";

/** Who pings whom, in one script for each machine. Pure. */
export interface Probe {
  from: string;
  to: string;
  target: string;
  /** `underlay`: below the overlay, between the two ends of a tunnel; asked along, and told only when the overlay fails. */
  layer: "overlay" | "underlay";
  /** Bytes of the largest packet that must pass unbroken, with its headers. */
  mtu: number;
}

export interface Answer extends Probe {
  /** Percent. */
  loss: number;
  /** Milliseconds on average. */
  rtt?: number;
  full: boolean;
}

const LARGEST = 1450;

export function probesFrom(from: End, ends: End[]): Probe[] {
  const others = ends.filter(({ name }) => name !== from.name);
  const overlay = others.flatMap((to) =>
    to.addresses.map((target) => ({
      from: from.name,
      to: to.name,
      target,
      layer: "overlay" as const,
      mtu: sizeFor(from, to),
    })),
  );
  const below = others.flatMap((to): Probe[] => {
    const tunnel = tunnelBetween(from, to);
    return tunnel ? [{ from: from.name, to: to.name, target: tunnel.remote, layer: "underlay", mtu: 0 }] : [];
  });
  return [...overlay, ...below];
}

const sizeFor = (a: End, b: End): number =>
  Math.min(a.mtu ?? Infinity, b.mtu ?? Infinity, ...((a.mtu ?? b.mtu) ? [] : [LARGEST]));

/** A runner's lease has one uid on both machines. */
export function tunnelBetween(a: End, b: End) {
  const uid = Object.keys(a.tunnels).find((each) => each in b.tunnels);
  return a.role !== b.role && uid !== undefined ? a.tunnels[uid] : undefined;
}

const HEADERS = { 4: 28, 6: 48 };
const headersOf = (target: string): number => HEADERS[target.includes(":") ? 6 : 4];

/** All at once; each answer is one line, short enough to be written in one piece. */
export function probeScript(probes: Probe[], count: number): string {
  return [
    "command -v ping >/dev/null || { echo ping >&2; exit 127; }",
    "probe() {",
    `  said=$(LC_ALL=C ping -n -q -c ${count} -i 0.2 -W 1 "$2" 2>/dev/null | tail -n 2 | tr '\\n' ' ')`,
    "  full=-",
    '  [ "$3" = 0 ] || { ping -n -q -c 3 -i 0.2 -W 1 -M do -s "$3" "$2" >/dev/null 2>&1 && full=yes || full=no; }',
    '  echo "$1 $full $said"',
    "}",
    ...probes.map(
      ({ target, mtu }, i) => `probe ${i} ${requireWord(target)} ${mtu === 0 ? 0 : mtu - headersOf(target)} &`,
    ),
    "wait",
  ].join("\n");
}

export function answersIn(probes: Probe[], stdout: string): Answer[] {
  const lines = new Map(stdout.split("\n").map((line) => [Number.parseInt(line, 10), line]));
  return probes.map((probe, i) => {
    const line = lines.get(i) ?? "";
    const rtt = /= [\d.]+\/([\d.]+)\//.exec(line)?.[1];
    const loss = Number(/([\d.]+)% packet loss/.exec(line)?.[1] ?? 100);
    return { ...probe, loss, full: / yes /.test(line), ...(rtt !== undefined && { rtt: Number(rtt) }) };
  });
}
