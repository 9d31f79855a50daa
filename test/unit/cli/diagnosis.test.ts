import { expect, test } from "vitest";
import type { NetworkEnd, PingResult } from "../../../cli/diagnosis";
import { findFailedHop } from "../../../cli/diagnosis";

/** Which hop verify names, from the answers of hosts in any order. */
const end = (name: string, role: NetworkEnd["role"]): NetworkEnd => ({
  name,
  role,
  addresses: [`ip of ${name}`],
  tunnels: {},
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
