import { expect, test } from "vitest";
import type { NetworkEnd, PingResult } from "../../../cli/diagnosis";
import { describeEnd, findFailedHop, planPings } from "../../../cli/diagnosis";
import type { Item } from "../../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../../provider/network/plan/hub";
import { parseFacts } from "../../../provider/network/read/facts";
import { networkSettings, toNetwork } from "../../../provider/resources/network-settings";

/** Which hop verify names, from the answers of hosts in any order. */
const end = (name: string, role: NetworkEnd["role"]): NetworkEnd => ({
  name,
  role,
  addresses: [`ip of ${name}`],
  tunnels: {},
  direct: [],
  wrong: {},
  suspects: { input: [], forward: [] },
});
const ends = new Map([end("hub", "hub"), end("r1", "runner"), end("r2", "runner")].map((each) => [each.name, each]));

/** `r1>hub 50`: percent lost in the overlay; with `below` in the underlay; `large` if only small packets pass. */
function answer(text: string): PingResult {
  const [way = "", loss, ...rest] = text.split(" ");
  const [from = "", to = ""] = way.split(">");
  const layer = rest.includes("below") ? "underlay" : "overlay";
  const passesFullSize = loss !== "100" && !rest.includes("large");
  return { from, to, target: `ip of ${to}`, layer, mtu: 1450, loss: Number(loss), passesFullSize };
}

test.each<[name: string, way: string, others: string[], hop: string]>([
  [
    "an underlay that is down, as seen from the nearer end, though the other end answered first",
    "r1>r2 100",
    ["r2>hub 100 below", "r2>hub 100", "hub>r2 100", "hub>r2 100 below"],
    "the underlay: ip of r2 (r2) does not answer hub",
  ],
  [
    "a tunnel that is down, not the one before it that loses some packets",
    "r1>r2 100",
    ["r1>hub 50", "hub>r1 0", "hub>r2 100", "r2>hub 100"],
    "hub to r2: UDP port 4789 does not pass, though both ends match their records; look for a firewall on the way",
  ],
  [
    "the hub, if no packet passes but tunnels lose only some",
    "r1>r2 100",
    ["r1>hub 50", "hub>r2 0"],
    "hub does not forward packets: look for a firewall there",
  ],
  [
    "the tunnel that loses some packets",
    "r1>r2 50",
    ["r1>hub 0", "hub>r2 0", "r2>hub 50"],
    "hub to r2: some packets are lost",
  ],
  [
    "the tunnel that large packets do not pass",
    "r1>r2 0 large",
    ["r1>hub 0", "hub>r2 0 large"],
    "hub to r2: packets of 1450 bytes are too large for the underlay",
  ],
  [
    "the same tunnel, if another one loses some packets",
    "r1>r2 0 large",
    ["r1>hub 50", "hub>r2 0 large"],
    "hub to r2: packets of 1450 bytes are too large for the underlay",
  ],
  ["no hop, if only the whole path loses packets", "r1>r2 50", ["r1>hub 0", "hub>r2 0"], "some packets are lost"],
])("verify names %s", (_, way, others, hop) => {
  const findings = { ends, results: [way, ...others].map(answer), unreachable: new Map() };
  expect(findFailedHop(answer(way), findings)).toBe(hop);
});

/** A hub and three runners of a mesh, of which r1 sends directly to r2 alone. */
function meshEnds() {
  const network = toNetwork(
    networkSettings.parse({
      networkName: "training",
      subnets: "10.128.0.0/12/6/14",
      tunnel: "wireguard",
      topology: "mesh",
    }),
  );
  const hostOf = (id: number) => ({
    underlayIp: `192.0.2.${1 + id}`,
    underlayMtu: 1500,
    publicKey: Buffer.alloc(32, id + 1).toString("base64"),
  });
  const factsOf = (items: Record<string, Item[]>) => ({
    ...parseFacts(""),
    records: Object.entries(items).map(([uid, each]) => ({
      uid,
      owner: "o",
      network: "training",
      name: uid,
      store: "s",
      items: each,
    })),
  });
  const runnerEnd = (id: number, routed: number[]) => {
    const others = [1, 2, 3].filter((each) => each !== id);
    const peers = others.map((each) => ({ id: each, port: 51820, isRouted: routed.includes(each), ...hostOf(each) }));
    const items = planRunner(network, id, "ovlW0", hostOf(0), hostOf(id), peers);
    return describeEnd(`r${id}`, "runner", "training", factsOf({ [`uid${id}`]: items }));
  };
  const onHub = [1, 2, 3].map((id) => [`uid${id}`, planTunnel(network, id, hostOf(0), hostOf(id))]);
  const hubItems = { ...Object.fromEntries(onHub), zone: planHub(network, hostOf(0)) };
  const all = [
    describeEnd("hub", "hub", "training", factsOf(hubItems)),
    runnerEnd(1, [2]),
    runnerEnd(2, [1]),
    runnerEnd(3, []),
  ];
  return new Map(all.map((each) => [each.name, { ...each, wrong: {} }]));
}

test("in a mesh verify pings the underlay of the hub and of runners with a direct route", () => {
  const hosts = meshEnds();
  const below = planPings(hosts.get("r1")!, [...hosts.values()]).filter(({ layer }) => layer === "underlay");
  expect(below.map(({ to, target }) => [to, target])).toEqual([
    ["hub", "192.0.2.1"],
    ["r2", "192.0.2.3"],
  ]);
});

test("verify pings the hub at its own address, not at one in the subnet of a runner", () => {
  const hosts = meshEnds();
  const toHub = planPings(hosts.get("r1")!, [...hosts.values()]).filter(({ to }) => to === "hub");
  expect(toHub.map(({ layer, target }) => [layer, target])).toEqual([
    ["overlay", "10.128.0.1"],
    ["underlay", "192.0.2.1"],
  ]);
});

test.each([
  [
    "r1>r2 100",
    ["r1>hub 0"],
    "r1 to r2: UDP port 51822 does not pass, though both ends match their records; look for a firewall on the way",
  ],
  [
    "r1>r3 100",
    ["hub>r3 100"],
    "hub to r3: UDP port 51820 does not pass, though both ends match their records; look for a firewall on the way",
  ],
  ["r1>r2 0 large", ["r1>hub 0"], "r1 to r2: packets of 1450 bytes are too large for the underlay"],
])("in a mesh the failed hop of %s is that of its own path", (pair, others, hop) => {
  const findings = { ends: meshEnds(), results: [pair, ...others].map(answer), unreachable: new Map() };
  expect(findFailedHop(answer(pair), findings)).toBe(hop);
});
