import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { Item } from "../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost } from "./lab-stack";
import { tries } from "./pings";

/** Hosts with firewalls of each kind that drop everything, before the overlay is created. */
let lab: Lab;

const network = training({ mtu: "auto" });

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
});
beforeEach(async () => {
  await Promise.all(lab.hosts.map(({ name }) => lab.rebuild(name)));
});
afterAll(async () => {
  await lab?.down();
});

const underlayOf = (name: string) => ({ underlayIp: lab.host(name).address, underlayMtu: 1500 });
const sh = async (host: string, script: string): Promise<string> => {
  const { code, stdout, stderr } = await lab.exec(host, script);
  if (code !== 0) throw new Error(`${host}: ${script}: ${stderr}`);
  return stdout.trim();
};

const apply = (name: string, uid: string, items: Item[]) =>
  new Reconciler().apply(labHost(lab, name), {
    record: { uid, owner: uid, network: "training", store: "s" },
    items,
    fence: async () => {},
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  });

async function overlay(): Promise<void> {
  await apply("hub", "net", planHub(network));
  for (const id of [1, 2]) {
    await apply("hub", `r${id}`, planTunnel(network, id, underlayOf("hub"), underlayOf(`r${id}`)));
    await apply(`r${id}`, `r${id}`, planRunner(network, id, `vxkr${id}`, underlayOf("hub"), underlayOf(`r${id}`)));
    const gateway = `10.128.${64 * id}.1`;
    await lab.container(`r${id}`, "job", { bridge: "kohaku-overlay", address: `10.128.${64 * id}.9/18`, gateway });
  }
}

/** Between workloads of two runners, and from a runner to the hub's own address. */
async function passes(): Promise<void> {
  await sh("r1", tries("ip netns exec job ping -c 1 -W 1 10.128.128.9"));
  await sh("r2", tries("ip netns exec job ping -c 1 -W 1 10.128.64.9"));
  await sh("r1", tries("ping -c 1 -W 1 10.128.0.1"));
}

const CLOSED = ["INPUT", "FORWARD"].map(
  (chain) => `iptables -P ${chain} DROP; iptables -A ${chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT`,
);

test("iptables with policy DROP, and a reject at the end", async () => {
  for (const { name } of lab.hosts)
    await sh(name, [...CLOSED, "iptables -A INPUT -j REJECT", "iptables -A FORWARD -j REJECT"].join("\n"));
  await overlay();
  await passes();
});

test("iptables with policy DROP set after the overlay was created", async () => {
  await overlay();
  for (const { name } of lab.hosts) await sh(name, CLOSED.join("\n"));
  await passes();
});

const remedyIn = (error: unknown): string => /`(.+)`/.exec(String(error))![1]!;

test.each([
  [
    "nftables",
    "nft add table inet mine; nft add chain inet mine forward '{ type filter hook forward priority 10; policy drop; }'",
  ],
  ["iptables-legacy", "iptables-legacy -P FORWARD DROP"],
])(
  "%s that drops forwarded packets is refused before anything is changed; with the commands of the error it works",
  async (tool, close) => {
    await sh("hub", close);
    const state = async () =>
      (await lab.exec("hub", "ip -br addr; ip route; ls -d /var/lib/overlay; cat /proc/sys/net/ipv4/ip_forward"))
        .stdout;
    const before = await state();
    const refusal = await overlay().catch((error: unknown) => error);
    expect(String(refusal)).toMatch(
      new RegExp(`FIREWALL_BLOCKED: hub: ${tool === "nftables" ? "nft" : tool} .*policy drop`, "i"),
    );
    expect(await state()).toBe(before);
    await sh("hub", remedyIn(refusal));
    await overlay();
    await passes();
  },
);

test("nftables with policy drop in input is refused on the host that has it", async () => {
  await sh(
    "r1",
    "nft add table ip mine; nft add chain ip mine input '{ type filter hook input priority 10; policy drop; }'",
  );
  const refusal = await overlay().catch((error: unknown) => error);
  expect(String(refusal)).toContain(
    "FIREWALL_BLOCKED: r1: nft ip mine input (policy drop) would drop VXLAN from 10.254.0.1",
  );
  await sh(
    "r1",
    `${remedyIn(refusal)}; nft add rule ip mine input ct state established,related accept; nft add rule ip mine input ip saddr 10.128.0.0/12 accept`,
  );
  await overlay();
  await passes();
});
