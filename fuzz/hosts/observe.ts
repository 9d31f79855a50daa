import type { Lab } from "../../lab/lab";
import { ask, serve } from "../../test/lab/services";

/** What the program promises about packets, tried with real ones. Returns what is not so. */

export const FORWARDED = { ip: "10.254.200.0", port: 80 };
const WEB = "10.128.64.5";
const JOB = "10.128.128.5";

/** Workloads on both runners, a service in one, and a route by which an outsider would reach it past the overlay. */
export async function startWorkloads(lab: Lab): Promise<void> {
  const bridge = "kohaku-overlay";
  await lab.container("r1", "web", { bridge, address: `${WEB}/18`, gateway: "10.128.64.1" });
  await lab.container("r2", "job", { bridge, address: `${JOB}/18`, gateway: "10.128.128.1" });
  await serve(lab, "r1", "web", "tcp", 80, "web");
  await lab.controller("ip", ["route", "replace", `${WEB}/32`, "via", lab.host("r1").address]);
}

const isReached = async (lab: Lab, host: string, script: string): Promise<boolean> =>
  (await lab.exec(host, `${script} >/dev/null 2>&1`)).code === 0;

const inside = (name: string, command: string): string => `ip netns exec ${name} ${command}`;
const ping = (ip: string): string => `ping -c 1 -W 1 ${ip}`;

const PROMISES: [what: string, expected: boolean, act: (lab: Lab) => Promise<boolean>][] = [
  ["web reaches job", true, (lab) => isReached(lab, "r1", inside("web", ping(JOB)))],
  ["job reaches web", true, (lab) => isReached(lab, "r2", inside("job", ping(WEB)))],
  ["web reaches the hub", true, (lab) => isReached(lab, "r1", inside("web", ping("10.128.0.1")))],
  ["job reaches the hub", true, (lab) => isReached(lab, "r2", inside("job", ping("10.128.0.1")))],
  [
    "the forward reaches web",
    true,
    async (lab) => (await ask(lab, { at: "controller" }, FORWARDED.ip, FORWARDED.port)).startsWith("web"),
  ],
  [
    "an outsider reaches web past the overlay",
    false,
    async (lab) => (await lab.controller("ping", ["-c", "1", "-W", "1", WEB])).code === 0,
  ],
  [
    "web reaches SSH of the hub",
    false,
    (lab) => isReached(lab, "r1", inside("web", "timeout 1 bash -c '</dev/tcp/10.128.0.1/22'")),
  ],
  [
    "web reaches SSH of its runner",
    false,
    (lab) => isReached(lab, "r1", inside("web", "timeout 1 bash -c '</dev/tcp/10.128.64.1/22'")),
  ],
];

/** Of a second each: WireGuard repeats a handshake that was lost after more than five. */
const TRIES = 8;

export async function observe(lab: Lab): Promise<string[]> {
  const results = await Promise.all(
    PROMISES.map(async ([what, expected, act]) => {
      for (let i = 0; i < TRIES; i++) if ((await act(lab)) === expected) return undefined;
      return expected ? `not: ${what}` : what;
    }),
  );
  return results.filter((text) => text !== undefined);
}

/** Objects of another program beside ours, which must be the same after all. */
export const OTHER_OBJECTS = [
  "ip link add theirs type bridge; ip link set theirs up; ip addr add 192.168.77.1/24 dev theirs",
  "ip link add theirvx type vxlan id 4242 dstport 4790 remote 10.254.9.8 local $LOCAL; ip link set theirvx up",
  "ip route add 192.168.78.0/24 dev theirs; ip rule add from 192.168.77.0/24 lookup 42 priority 500; ip route add default dev theirs table 42",
  "nft 'table inet theirs { chain f { type filter hook forward priority 20; policy accept; tcp dport 25 drop; }; }'",
  "mkdir -p /var/lib/theirs; echo theirs >/etc/overlay-theirs.conf; sysctl -qw net.ipv4.conf.theirs.rp_filter=2",
];

export const SHOW_OTHER_OBJECTS = [
  "ip -o addr show dev theirs | grep -v inet6; ip -d link show theirvx | grep -o 'vxlan id.*ttl'; bridge fdb show dev theirvx",
  "ip route show dev theirs; ip rule show priority 500; ip route show table 42",
  "nft list table inet theirs; cat /etc/overlay-theirs.conf; ls -d /var/lib/theirs; cat /proc/sys/net/ipv4/conf/theirs/rp_filter",
].join("; ");
