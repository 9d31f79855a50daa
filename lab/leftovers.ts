import type { Lab } from "./lab";

/** Our items and files that a host still has, as text; empty if there are none. */
export async function findLeftovers(lab: Lab, host: string): Promise<string> {
  const { stdout } = await lab.exec(
    host,
    [
      "ip -o link show | grep -oE 'vxkr[0-9a-zA-Z]+|kohaku-[a-z]+|ovl[0-9a-zA-Z]+|overlay-(br|hub|vip)'",
      "ip route show table all proto 183; ip -6 route show table all proto 183; { ip rule; ip -6 rule; } | grep 'proto 183'",
      "ip neigh show proxy; pgrep wireguard-go",
      "{ iptables-save; ip6tables-save; } | grep OVERLAY",
      "ls -d /var/lib/overlay /run/pulumi-overlay/* 2>/dev/null",
      "[ $(cat /proc/sys/net/ipv4/ip_forward) = 0 ] || echo ip_forward",
    ].join("; "),
  );
  return stdout.trim();
}
