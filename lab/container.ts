export interface ContainerOptions {
  /** The host's bridge that the container's interface is attached to. */
  bridge: string;
  /** `10.128.64.5/18`; one of each family, if need be. */
  address: string | string[];
  /** Default routes go there. */
  gateway?: string | string[];
  /** Default: that of the bridge. */
  mtu?: number;
}

/** The commands of a container runtime for the network of a container. Pure. */
export function containerScript(name: string, { bridge, address, gateway = [], mtu }: ContainerOptions): string {
  const port = `ve-${name}`.slice(0, 15);
  const inside = `ip -n ${name}`;
  const size = mtu ?? `$(cat /sys/class/net/${bridge}/mtu)`;
  return [
    "set -e",
    `ip netns add ${name}`,
    `ip link add ${port} mtu ${size} type veth peer name eth0 mtu ${size} netns ${name}`,
    `ip link set ${port} master ${bridge} up`,
    `${inside} link set lo up`,
    ...[address]
      .flat()
      .map((address) => `${inside} addr add ${address} dev eth0${address.includes(":") ? " nodad" : ""}`),
    `${inside} link set eth0 up`,
    ...[gateway].flat().map((gateway) => `${inside} route add default via ${gateway}`),
  ].join("\n");
}
