import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseLayout } from "../../provider/addressing/layout";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../../provider/host/reconcile/requests";
import type { Item } from "../../provider/network/model/items";
import { planRunner } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost, must } from "./lab-stack";

/** A runner with an IPv6 default route from a router advertisement; here the hub is the router. */
let lab: Lab;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
});
afterAll(() => lab?.down());

/** A router advertisement to all nodes, once the router has a link-local address to send it from. */
const ADVERTISE = `while ip -6 addr show dev eth0 | grep -q tentative; do sleep 0.1; done
/usr/bin/python3 -c '
import socket, struct
raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex("eth0"))
raw.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0), ("ff02::1", 0))
'`;

const underlayOf = (name: string) => ({ underlayIp: lab.host(name).address, underlayMtu: 1500 });
const items = (): Item[] =>
  planRunner(
    training({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/48/16/64")] }),
    1,
    "vxkr1",
    underlayOf("hub"),
    underlayOf("r1"),
  );
const work = (desired: Item[]): ApplyRequest => ({
  record: { uid: "r1", owner: "r1", network: "training", store: "s" },
  items: desired,
  persist: true,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
});
const reconciler = new Reconciler();
async function learnRoute(): Promise<void> {
  await must(lab, "hub", ADVERTISE);
  await must(
    lab,
    "r1",
    "for i in $(seq 50); do ip -6 route show default | grep -q 'proto ra' && exit; sleep 0.1; done; exit 1",
  );
}
const readDefaultRoutes = () => must(lab, "r1", "ip -6 route show default");
const readAcceptRa = () => must(lab, "r1", "cat /proc/sys/net/ipv6/conf/eth0/accept_ra");

test("a route from a router advertisement stays when forwarding is enabled, and when it is restored", async () => {
  await learnRoute();
  await reconciler.apply(labHost(lab, "r1"), work(items()));
  expect(await must(lab, "r1", "cat /proc/sys/net/ipv6/conf/all/forwarding")).toContain("1");
  expect(await readDefaultRoutes()).toContain("proto ra");
  expect(await readAcceptRa()).toContain("2");
  expect((await reconciler.inspect(labHost(lab, "r1"), work(items()))).differences).toEqual([]);

  await must(lab, "r1", "ip -6 route flush proto ra; echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_ra");
  await must(lab, "r1", "sh /var/lib/overlay/boot.sh");
  expect(await readAcceptRa()).toContain("2");
  await learnRoute();

  await reconciler.apply(labHost(lab, "r1"), work([]));
  expect(await readAcceptRa()).toContain("1");
  expect(await readDefaultRoutes()).toContain("proto ra");
  expect(await must(lab, "r1", "ls /var/lib")).not.toMatch(/^overlay$/m);
});
