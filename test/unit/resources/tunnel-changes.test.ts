import { expect, test } from "vitest";
import type { Link } from "../../../provider/network/model/items";
import { networkSettings } from "../../../provider/resources/network-settings";
import { runnerSubnet } from "../../../provider/resources/runner-subnet";

/** Which changes lead from the tunnels that the hub has on record for a runner to the one that it is to have. */
const [HUB, RUNNER] = ["192.0.2.1", "192.0.2.11"] as const;
type Props = Parameters<NonNullable<typeof runnerSubnet.host>["plan"]>[0] & {
  temporary?: { vni: number; port: number };
};

function runnerWith(settings: Record<string, unknown>): Props {
  const network = networkSettings.parse({ networkName: "training", ...settings });
  const connections = { connection: { host: RUNNER }, hubConnection: { host: HUB } };
  const inputs = runnerSubnet.inputs.parse({ network, runnerName: "a", ...connections });
  return { ...inputs, ...runnerSubnet.values(inputs, [{ first: 1n, last: 1n }]) };
}

const vxlan = (name: string, vni: number, port: number): Link => ({
  kind: "link",
  name,
  type: "vxlan",
  vxlan: { vni, port, local: HUB, remote: RUNNER },
});
const wireguard = (name: string, port: number): Link => ({
  kind: "link",
  name,
  type: "wireguard",
  wireguard: { port, local: HUB, keyFile: `/var/lib/overlay/training/tunnel${name.endsWith("1") ? "-1" : ""}.key` },
});

function describeTunnel({ network, temporary, runnerDevice }: Props): string {
  const { tunnel, vniBase, vxlanPort, wireguardPort, keyGeneration } = network;
  if (temporary) return `temporary ${temporary.vni} ${temporary.port}`;
  return tunnel === "vxlan"
    ? `vxlan ${vniBase} ${vxlanPort} ${runnerDevice}`
    : `wireguard ${keyGeneration} ${wireguardPort} ${runnerDevice}`;
}

const TEMPORARY = 1367688;
const WIREGUARD = { tunnel: "wireguard" };

test.each<[string, Record<string, unknown>, Link[], string[]]>([
  ["a new runner", {}, [], []],
  ["the same VXLAN", {}, [vxlan("ovl1", 101, 4789)], []],
  ["the same WireGuard", WIREGUARD, [wireguard("ovlW0", 51820)], []],
  ["another port of WireGuard alone", WIREGUARD, [wireguard("ovlW0", 51900)], []],
  ["to WireGuard", WIREGUARD, [vxlan("ovl1", 101, 4790)], ["vxlan 100 4790 ovl1 → wireguard 0 51820 ovlW0"]],
  ["to VXLAN", {}, [wireguard("ovlW1", 51901)], ["wireguard 1 51900 ovlW1 → vxlan 100 4789 ovl1"]],
  [
    "new keys",
    { ...WIREGUARD, keyGeneration: 3 },
    [wireguard("ovlW0", 51820), wireguard("ovlW1", 51821)],
    ["wireguard 0 51820 ovlW0 → wireguard 3 51820 ovlW1"],
  ],
  [
    "another VNI",
    { vniBase: 300 },
    [vxlan("ovl1", 101, 4789)],
    [`vxlan 100 4789 ovl1 → temporary ${TEMPORARY} 4789`, `temporary ${TEMPORARY} 4789 → vxlan 300 4789 ovl1`],
  ],
  [
    "another port, with the temporary tunnel of a change that was not finished",
    { vxlanPort: 4791 },
    [vxlan("ovl1", 101, 4789), vxlan("ovlT1", 7, 4790)],
    ["vxlan 100 4789 ovl1 → temporary 7 4790", "temporary 7 4790 → vxlan 100 4791 ovl1"],
  ],
  [
    "what is left of a change",
    {},
    [vxlan("ovl1", 101, 4789), vxlan("ovlT1", 7, 4790)],
    ["temporary 7 4790 → vxlan 100 4789 ovl1"],
  ],
])("%s", (_, settings, recorded, expected) => {
  const underlays = {
    hub: { underlayIp: HUB, underlayMtu: 1500 },
    runner: { underlayIp: RUNNER, underlayMtu: 1500 },
  };
  const changes = runnerSubnet.host!.tunnelChanges!(runnerWith(settings), recorded, underlays);
  expect(changes.map(({ former, target }) => `${describeTunnel(former)} → ${describeTunnel(target)}`)).toEqual(
    expected,
  );
});
