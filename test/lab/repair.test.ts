import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseLayout } from "../../provider/addressing/layout";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../../provider/host/reconcile/requests";
import type { Item } from "../../provider/network/model/items";
import { planHub, planRunner, planTunnel } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost, must } from "./lab-stack";
import { lossDuring, tries } from "./pings";

/** Packets lost while the rules of a hub with many runners are added again, one owner after the other, as an up does, or by the boot script. */
let lab: Lab;

const RUNNERS = 200;
const network = training({ layouts: [parseLayout("10.128.0.0/12/9/11"), parseLayout("fd00:128::/48/16/64")] });
const JOBS: Record<string, { address: string; address6: string }> = {
  r1: { address: "10.128.8.9", address6: "fd00:128:0:1::9" },
  r2: { address: "10.128.16.9", address6: "fd00:128:0:2::9" },
};

const underlay = (name: string) => ({ underlayIp: lab.host(name).address, underlayMtu: 1500 });
/** Only the first two runners exist. */
const runner = (id: number) => (id <= 2 ? underlay(`r${id}`) : { underlayIp: `10.254.250.${id}`, underlayMtu: 1500 });
const onHub = (): [uid: string, items: Item[]][] => [
  ["net", planHub(network)],
  ...Array.from({ length: RUNNERS }, (_, i): [string, Item[]] => {
    return [`r${i + 1}`, planTunnel(network, i + 1, underlay("hub"), runner(i + 1))];
  }),
];

const request = (uid: string, items: Item[]): ApplyRequest => ({
  record: { uid, owner: uid, network: "training", store: "s" },
  items,
  persist: true,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
});
const reconciler = new Reconciler();
const apply = (host: string, uid: string, items: Item[]) => reconciler.apply(labHost(lab, host), request(uid, items));

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  await Promise.all(onHub().map(([uid, items]) => apply("hub", uid, items)));
  for (const [i, name] of ["r1", "r2"].entries()) {
    await apply(name, name, planRunner(network, i + 1, `vxkr${i + 1}`, underlay("hub"), underlay(name)));
    const { address, address6 } = JOBS[name]!;
    const gateway = address.replace(/9$/, "1");
    await lab.container(name, "job", { bridge: "kohaku-overlay", address: `${address}/21`, gateway });
    await must(
      lab,
      name,
      `dev=$(ip netns exec job ls /sys/class/net | grep -v lo); ip -n job addr add ${address6}/64 dev $dev nodad
      ip -n job route add default via ${address6.replace(/9$/, "1")}`,
    );
  }
}, 120_000);
afterAll(async () => {
  await lab?.down();
});

beforeEach(async () => {
  for (const { address, address6 } of [JOBS.r2!])
    for (const ip of [address, address6]) await must(lab, "r1", tries(`ip netns exec job ping -c 1 -W 1 ${ip}`));
  const tables = ["raw", "mangle", "filter", "nat"];
  for (const tool of ["iptables", "ip6tables"])
    await must(lab, "hub", tables.map((table) => `${tool} -t ${table} -F; ${tool} -t ${table} -X`).join("\n"));
});

const drift = async (): Promise<unknown[]> => {
  const found = onHub().map(([uid, items]) => reconciler.inspect(labHost(lab, "hub"), request(uid, items)));
  return (await Promise.all(found)).flatMap(({ differences }) => differences);
};

const repairs: [string, () => Promise<unknown>][] = [
  [
    "up --refresh",
    async () => {
      const [net, ...tunnels] = onHub();
      await apply("hub", ...net!);
      for (const [uid, items] of tunnels.slice(0, 3)) await apply("hub", uid, items);
      await Promise.all(tunnels.slice(3).map(([uid, items]) => apply("hub", uid, items)));
    },
  ],
  ["the boot script", () => must(lab, "hub", "sh /var/lib/overlay/boot.sh")],
];

test.each(repairs.flatMap(([by, act]) => [4, 6].map((family) => [by, family, act] as const)))(
  "the repair of a flushed hub by %s loses no packet, IPv%i",
  async (_, family, act) => {
    const target = family === 4 ? JOBS.r2!.address : JOBS.r2!.address6;
    const { lost, longest, sent } = await lossDuring(lab, { host: "r1", container: "job", target }, act);
    expect({ lost, longest }, `of ${sent}`).toEqual({ lost: 0, longest: 0 });
    expect(await drift()).toEqual([]);
  },
);
