import type { OverlayError } from "../../errors";
import type { End } from "./ends";
import { type Answer, tunnelBetween } from "./matrix";

/** All that is known of a network when its machines have answered. */
export interface Findings {
  ends: Map<string, End>;
  answers: Answer[];
  /** Machines that could not be asked, and why. */
  silent: Map<string, OverlayError>;
}

export const isFine = ({ loss, full }: Answer): boolean => loss === 0 && full;

/**
 * Which hop is to blame, by what is surest: a machine that differs from its own records, then the network below, then a
 * tunnel through which nothing passes, then the hub in between. What is lost now and then explains only that. Pure.
 */
export function blame({ from, to, loss }: Answer, findings: Findings): string {
  const path = pathOf(from, to, findings);
  const legs = path.slice(1).map((end, i) => [path[i]!, end] as const);
  return (
    first(path, (name) => silence(name, findings)) ??
    first(path, (name) => difference(name, path, findings)) ??
    first(legs, ([a, b]) => below(a, b, findings)) ??
    first(legs, ([a, b]) => tunnel(a, b, findings)) ??
    first(legs, ([a, b]) => weakness(a, b, loss, findings)) ??
    (loss < 100 && loss > 0 ? "packets are lost now and then" : through(path, findings))
  );
}

const first = <T>(all: readonly T[], find: (each: T) => string | undefined): string | undefined => {
  for (const each of all) {
    const found = find(each);
    if (found !== undefined) return found;
  }
  return undefined;
};

function pathOf(from: string, to: string, { ends }: Findings): string[] {
  const hub = [...ends.values()].find(({ role }) => role === "hub")?.name;
  return hub === undefined || from === hub || to === hub ? [from, to] : [from, hub, to];
}

const silence = (name: string, { silent }: Findings): string | undefined =>
  silent.has(name) ? `${name} could not be asked: ${silent.get(name)!.code}` : undefined;

/** On the hub only what concerns these runners, and the network itself. */
function difference(name: string, path: string[], { ends }: Findings): string | undefined {
  const end = ends.get(name)!;
  if (end.addresses.length === 0)
    return `${name} has no record of this network: \`pulumi up\` has not configured it, or the record is lost`;
  const others = new Set(
    [...ends.values()]
      .filter((other) => other.role === "runner" && !path.includes(other.name))
      .flatMap((other) => Object.keys(other.tunnels)),
  );
  const wrong = Object.entries(end.wrong).flatMap(([uid, texts]) => (others.has(uid) ? [] : texts));
  if (wrong.length === 0) return undefined;
  return `${name} differs: ${wrong[0]}${wrong.length > 1 ? `, and ${wrong.length - 1} more` : ""}`;
}

/** There before back, whichever machine was done first. */
const between = (a: string, b: string, layer: Answer["layer"], { answers }: Findings): Answer[] => {
  const along = (from: string, to: string) =>
    answers.filter((each) => each.layer === layer && each.from === from && each.to === to);
  return [...along(a, b), ...along(b, a)];
};

function below(a: string, b: string, findings: Findings): string | undefined {
  const dead = between(a, b, "underlay", findings).find(({ loss }) => loss === 100);
  return dead && `the underlay: ${dead.target} (${dead.to}) does not answer ${dead.from}`;
}

function tunnel(a: string, b: string, findings: Findings): string | undefined {
  if (!between(a, b, "overlay", findings).some(({ loss }) => loss === 100)) return undefined;
  const ends = [findings.ends.get(a)!, findings.ends.get(b)!] as const;
  const suspect = ends.flatMap(({ name, suspects }) => suspects.input.map((rule) => `${name} has INPUT ${rule}`))[0];
  const port = tunnelBetween(...ends)?.port ?? 4789;
  return `${a} to ${b}: UDP port ${port} does not pass, ${suspect ?? "though both ends match their records; look for a firewall on the way"}`;
}

/** A leg with the same trouble as the whole way: some packets are lost, or only large ones. */
function weakness(a: string, b: string, loss: number, findings: Findings): string | undefined {
  if (loss === 100) return undefined;
  const answers = between(a, b, "overlay", findings);
  if (loss > 0 && answers.some((leg) => leg.loss > 0)) return `${a} to ${b}: packets are lost now and then`;
  const narrow = answers.find(({ full }) => !full);
  return narrow && `${a} to ${b}: packets of ${narrow.mtu} bytes are too large for the underlay`;
}

function through(path: string[], { ends }: Findings): string {
  const hub = ends.get(path[1]!)!;
  const [suspect] = hub.suspects.forward;
  return `${hub.name} does not forward packets${suspect ? `, it has FORWARD ${suspect}` : ": look for a firewall there"}`;
}
