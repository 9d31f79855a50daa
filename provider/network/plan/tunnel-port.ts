import { FAMILIES, type Family, familyOfIp, tryParseIp } from "../../addressing/ip";
import { containsIp } from "../diff/steps";
import { devicesWithAddress } from "../kinds/device";
import { GUARD, markUsersRule, OUT, PRE, planChainRules, TUNNEL_USER_MARK, USERS } from "../kinds/firewall";
import { isOurRoute } from "../kinds/route";
import type { Facts, RouteFact } from "../model/facts";
import type { Item, Vxlan } from "../model/items";

/**
 * The UDP port of tunnels. A peer is known by its underlay address alone, and its host gives that address to whatever it forwards or sends:
 * containers behind a bridge of Docker's, workloads of other networks, users other than root. So each host lets the port pass only
 *
 *   in    by the devices that lead to the peer (OVERLAY-PRE); workloads and containers of the host itself come by others
 *   out   by those devices, from the kernel's tunnels and from root: nothing that is forwarded (OVERLAY-GUARD), nothing from users (OVERLAY-OUT)
 *
 * A tunnel's packets keep the socket of a local user who sends into the overlay: these are marked before they enter the tunnel.
 */
type Ends = Pick<Vxlan, "remote" | "local" | "port">;

/** `open`: ports on which other programs have peers that are not known; `others`: tunnels of other programs on our ports, by device. */
export function planTunnelPorts(tunnels: Ends[], others: Map<string, Ends>, open: number[], facts: Facts): Item[] {
  return [
    ...tunnels.flatMap((tunnel) => planTunnelPort(tunnel, !open.includes(tunnel.port), facts)),
    ...[...others].flatMap(([name, tunnel]) => [
      ...(tryParseIp(tunnel.remote) === undefined ? [] : planArrivals(tunnel, devicesToward(tunnel, facts))),
      ...FAMILIES.flatMap((family) => planChainRules(OUT, family, [markUsersRule(name)])),
    ]),
  ];
}

function planTunnelPort(tunnel: Ends, isClosed: boolean, facts: Facts): Item[] {
  const family = familyOfIp(tunnel.remote);
  const devices = devicesToward(tunnel, facts);
  const port = matchPort(tunnel);
  if (devices.length === 0) return [];
  return [
    ...planArrivals(tunnel, devices),
    ...(isClosed ? planChainRules(PRE, family, [`${port} -m addrtype --dst-type LOCAL -j DROP`]) : []),
    ...planChainRules(
      GUARD,
      family,
      devices.map((device) => `-o ${device} ${port} -j DROP`),
    ),
    ...planChainRules(
      OUT,
      family,
      devices.map((device) => `-o ${device} ${port} ${USERS} -m mark ! --mark ${TUNNEL_USER_MARK} -j DROP`),
    ),
  ];
}

const planArrivals = (tunnel: Ends, devices: string[]): Item[] =>
  planChainRules(
    PRE,
    familyOfIp(tunnel.remote),
    devices.map((device) => `-i ${device} ${matchPort(tunnel)} -j RETURN`),
  );

const matchPort = ({ port }: Ends): string => `-p udp -m udp --dport ${port}`;

/** Devices with our underlay address, and those of the routes to the peer: of several uplinks each may be used. */
function devicesToward({ remote, local }: Ends, facts: Facts): string[] {
  const routes = routesTo(remote, facts).flatMap(({ dev, nexthopDevices = [] }) => [dev ?? [], nexthopDevices].flat());
  const names = [...devicesWithAddress(local, facts), ...routes];
  const masters = names.flatMap((name) => facts.links.get(name)?.master ?? []);
  return [...new Set([...names, ...masters])].filter((name) => name !== "lo" && /^[\w.-]+$/.test(name)).sort();
}

/** The most specific ones, whatever their metrics. */
function routesTo(remote: string, { routes }: Facts): RouteFact[] {
  const family = familyOfIp(remote);
  const found = routes.filter(
    (route) => isUsable(route, family) && !isOurRoute(route) && containsIp(route.dst, remote),
  );
  const longest = Math.max(...found.map(({ dst }) => prefixLength(dst)));
  return found.filter(({ dst }) => prefixLength(dst) === longest);
}

const isUsable = ({ family, table, unreachable }: RouteFact, wanted: Family): boolean =>
  family === wanted && table === undefined && !unreachable;

const prefixLength = (range: string): number => (range === "default" ? -1 : Number(range.split("/")[1] ?? 128));
