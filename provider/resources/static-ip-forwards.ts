import { type Family, familyExtent, familyOf, isIpInRange, parseIp, parseRange } from "../addressing/ip";
import { type Layout, parseLayout, runnerLayout } from "../addressing/layout";
import { OverlayError } from "../errors";
import type { StaticAddress } from "../network/plan/static-ip";
import type { InputError } from "../resource";
import { isLayout } from "./inputs";
import type { PoolSettings } from "./ip-pool";
import type { Inputs, StaticProps } from "./static-ip-inputs";

/** Where a static address forwards to, and the path of replies. */

const familyOfText = (text: string): Family => familyOf(parseIp(text.split("/")[0]!));

export function rejectOtherFamily({ ip, forwards = [] }: StaticProps): void {
  const wrong = forwards.findIndex(({ to }) => familyOfText(to) !== familyOfText(ip));
  if (wrong < 0) return;
  throw new OverlayError(
    "INPUT_INVALID",
    `forwards[${wrong}].to is ${forwards[wrong]!.to}, but ${ip} is an IPv${familyOfText(ip)} address.`,
    "Give each address family a static address of its own.",
  ).about(`forwards.${wrong}.to`);
}

/** In a pool with both families, the first workload decides the family. */
export function familyRequest({ ranges }: PoolSettings, forwards: Inputs["forwards"]) {
  const families = new Set(ranges.map((text) => familyOf(parseRange(text)!.first)));
  return families.size === 2 && forwards[0] ? { within: familyExtent(familyOfText(forwards[0].to)) } : {};
}

const layoutsOf = ({ subnets }: Inputs["attach"]): Layout[] => [subnets].flat().map(parseLayout);

export const staticAddress = ({ ip, forwards, attach, preserveClientIp }: StaticProps): StaticAddress => ({
  ip,
  forwards: forwards.map(withPort),
  preserveClientIp,
  cidrs: attach.runnerName ? [attach.subnets].flat() : layoutsOf(attach).map(({ cidr }) => cidr),
});

const withPort = ({ protocol, port, to, toPort = port }: Inputs["forwards"][number]) => ({
  protocol,
  port,
  to,
  toPort,
});

/** Runners that send replies back to the hub, if workloads see the addresses of clients. A carrier that is a runner needs none. */
export function returnRunners({ ip, attach, runners, runnerConnections, preserveClientIp, forwards }: StaticProps) {
  if (!preserveClientIp || attach.runnerName) return [];
  const layout = layoutsOf(attach).find(({ family }) => family === familyOfText(ip));
  if (!layout) return [];
  return runners.flatMap(({ runnerName, subnets }, i) => {
    const subnet = subnets.find((text) => familyOfText(text) === layout.family)!;
    const forwarded = forwards.filter(({ to }) => isIpInRange(to, subnet)).map(withPort);
    const id = Number((parseRange(subnet)!.first - layout.base) >> BigInt(layout.subnetBits));
    const { hubIp } = runnerLayout(layout, id);
    const path = { networkName: attach.networkName, cidr: layout.cidr, subnet, hubIp, bridge: attach.bridgeName! };
    return forwarded.length > 0
      ? [{ role: `runner/${runnerName}`, connection: runnerConnections[i]!, path, forwarded }]
      : [];
  });
}

export function* crossFieldErrors(inputs: Inputs): Generator<InputError> {
  const { attach, forwards, runners, runnerConnections, preserveClientIp, onConflict, onPortConflict } = inputs;
  if (onConflict === "take" && onPortConflict === "anotherAddress")
    yield { property: "onPortConflict", reason: "anotherAddress does not go with onConflict take: choose one of them" };
  const seen = new Set<string>();
  for (const [i, { protocol, port }] of forwards.entries()) {
    if (seen.has(`${protocol}/${port}`))
      yield { property: `forwards.${i}.port`, reason: `is there twice: ${protocol}/${port}` };
    seen.add(`${protocol}/${port}`);
  }
  for (const [i, { networkName, runnerName }] of runners.entries()) {
    if (networkName !== attach.networkName)
      yield {
        property: `runners.${i}`,
        reason: `is ${runnerName} of network ${networkName}, not of ${attach.networkName}`,
      };
  }
  if (runnerConnections.length !== runners.length)
    yield { property: "runnerConnections", reason: `must be one for each of ${runners.length} runners` };
  const isWrong = (text: string): boolean => isLayout(text) === (attach.runnerName !== undefined);
  if ([attach.subnets].flat().some(isWrong))
    yield { property: "attach.subnets", reason: attach.runnerName ? "must be CIDRs of the runner" : "must be layouts" };
  else if (preserveClientIp) yield* returnPathErrors(inputs);
}

function* returnPathErrors({ attach, forwards, runners }: Inputs): Generator<InputError> {
  const reached = attach.runnerName ? [attach.subnets].flat() : runners.flatMap(({ subnets }) => subnets);
  const where = attach.runnerName ? `runner ${attach.runnerName}, which carries the address` : "one of `runners`";
  for (const [i, { to }] of forwards.entries()) {
    if (!reached.some((subnet) => isIpInRange(to, subnet)))
      yield {
        property: `forwards.${i}.to`,
        reason: `must be a workload of ${where}: only from there do replies to clients lead back`,
      };
  }
}
