import { deviceMac } from "../addressing/layout";
import { formatTime } from "../format-time";
import { parseSettings } from "../resource";
import { layoutsOf, readHub, storedNetwork } from "../resources/network-settings";
import { readOverrides, runnerValues } from "../resources/runner-subnet";
import type { Context } from "./context";
import type { RunnerInput } from "./inputs";
import { findRunnerNamed } from "./runners";

/** All that a machine needs to configure itself as a runner. Properties are called as the outputs of a RunnerSubnet. */
export interface RunnerConfig extends ReturnType<typeof runnerValues> {
  runnerName: string;
  /** The host of the hub as SSH reaches it; absent if it is not known yet. */
  hub?: string;
  /** Its address on the network below, where tunnels end; absent: the address of `hub`. */
  hubUnderlayIp?: string;
  vxlanPort: number;
  /** `auto`: that of the network below, less 50 over IPv4 and 70 over IPv6. */
  mtu: number | "auto";
  masquerade: boolean;
  /** MACs that do not change when a device is created again. */
  bridgeMac: string;
  runnerMac: string;
  /** The whole overlay through the hub, for each address family. */
  routes: { to: string; via: string }[];
  lastSeen: string;
}

export async function describeRunnerConfig(context: Context, input: RunnerInput): Promise<RunnerConfig> {
  const { pool } = context;
  const runner = await findRunnerNamed(context, input);
  const spec = (await pool.spec(runner.lease.pool))!;
  const network = parseSettings(storedNetwork, spec);
  const overrides = readOverrides((await pool.spec(runner.pool)) ?? runner.addresses);
  const id = Number(runner.lease.extents[0]!.first);
  const hub = readHub(spec);
  return {
    runnerName: runner.name,
    ...runnerValues(network, overrides, id),
    ...(hub !== undefined && { hub }),
    ...(network.hubUnderlayIp !== undefined && { hubUnderlayIp: network.hubUnderlayIp }),
    vxlanPort: network.vxlanPort,
    mtu: overrides.mtu ?? network.mtu,
    masquerade: overrides.masquerade ?? network.masquerade,
    bridgeMac: deviceMac(runner.network, id, "bridge"),
    runnerMac: deviceMac(runner.network, id, "runner"),
    routes: layoutsOf(network.subnets).map(({ cidr }, i) => ({ to: cidr, via: runner.layouts[i]!.hubIp })),
    lastSeen: formatTime(runner.lease.lastSeen),
  };
}
