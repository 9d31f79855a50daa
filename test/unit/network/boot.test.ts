import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { planSteps } from "../../../provider/network/diff/steps";
import { diffItems, formatDifference } from "../../../provider/network/kinds";
import type { Facts } from "../../../provider/network/model/facts";
import { type DesiredState, type Item, itemKey, type Service } from "../../../provider/network/model/items";
import { renderBootScript, withBootItems } from "../../../provider/network/plan/boot";
import { planHub, planRunner } from "../../../provider/network/plan/hub";
import { parseFacts } from "../../../provider/network/read/facts";
import { hub, onIpv4, runner, training } from "../../network";

const network = training();
const desired = (items: Item[], persist = true): DesiredState => ({
  record: { uid: "u1", owner: "org/u1", network: "training", store: "s" },
  items,
  persist,
});
const bare = (systemd = false): Facts => parseFacts(systemd ? "@@ systemd\n" : "");

test("a runner's boot script creates what a change would create, and sets what is present", () => {
  expect(renderBootScript("training", onIpv4(planRunner(network, 1, "vxkr1", hub, runner))).split("\n")).toEqual([
    "# overlay network, rules first: training",
    "ours kohaku-overlay '02:b4:50:c4:a4:32' 'inet6? (10.128.64.1/18) ' || return 1",
    "ours vxkr1 '02:6d:9b:be:e2:62' 'vxlan id 101 .*dstport 4789 ' || return 1",
    "firewall <<'END' || return 0",
    "4 filter :OVERLAY-IN - [0:0]",
    "4 filter :OVERLAY-FWD - [0:0]",
    "4 filter -I OVERLAY-IN 1 -s 192.0.2.1/32 -p udp -m udp --dport 4789 -j ACCEPT",
    "4 filter -A OVERLAY-IN -p udp -m udp --dport 4789 -j DROP",
    "4 filter -I OVERLAY-FWD 1 -i kohaku-overlay -o kohaku-overlay -j ACCEPT",
    "4 filter -I OVERLAY-FWD 1 -o kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "4 filter -I OVERLAY-IN 1 -s 10.128.0.0/12 -i kohaku-overlay -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "4 filter -I OVERLAY-IN 1 -s 10.128.0.0/12 -i kohaku-overlay -p icmp -m icmp --icmp-type 8 -j ACCEPT",
    "4 filter -A OVERLAY-IN -i kohaku-overlay -j REJECT --reject-with icmp-port-unreachable",
    "4 filter -I INPUT 1 -j OVERLAY-IN",
    "4 filter -I FORWARD 1 -j OVERLAY-FWD",
    "4 raw :OVERLAY-PRE - [0:0]",
    "4 raw :OVERLAY-OUT - [0:0]",
    "4 raw -A OVERLAY-PRE ! -d 10.128.0.0/12 -i kohaku-overlay -p udp -m udp --dport 4789 -j DROP",
    "4 raw -A OVERLAY-OUT -o kohaku-overlay -p icmp -m icmp --icmp-type 5 -j DROP",
    "4 raw -A OVERLAY-OUT -o kohaku-overlay -m owner --uid-owner 1-4294967294 -j MARK --set-xmark 0x20000000/0x20000000",
    "4 raw -I PREROUTING 1 -j OVERLAY-PRE",
    "4 raw -I OUTPUT 1 -j OVERLAY-OUT",
    "4 mangle :OVERLAY-GUARD - [0:0]",
    "4 mangle -I OVERLAY-GUARD 1 -s 10.128.64.0/18 -d 192.0.2.1/32 -i kohaku-overlay -p icmp -m icmp --icmp-type 8 -j RETURN",
    "4 mangle -A OVERLAY-GUARD -d 192.0.2.1/32 -i kohaku-overlay -j DROP",
    "4 mangle -I OVERLAY-GUARD 1 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN",
    "4 mangle -A OVERLAY-GUARD ! -s 10.128.64.0/18 ! -d 10.128.64.0/18 -i kohaku-overlay -o kohaku-overlay -j DROP",
    "4 mangle -A OVERLAY-GUARD ! -s 10.128.64.0/18 -i kohaku-overlay ! -o kohaku-overlay -j DROP",
    "4 mangle -A OVERLAY-GUARD ! -i kohaku-overlay -o kohaku-overlay -j DROP",
    "4 mangle -I FORWARD 1 -j OVERLAY-GUARD",
    "4 nat :OVERLAY-NAT - [0:0]",
    "4 nat -A OVERLAY-NAT -s 10.128.64.0/18 ! -d 10.128.0.0/12 -j MASQUERADE",
    "4 nat -I POSTROUTING 1 -j OVERLAY-NAT",
    "END",
    "change <<'END'",
    "link add kohaku-overlay address 02:b4:50:c4:a4:32 type bridge",
    "link set dev kohaku-overlay address 02:b4:50:c4:a4:32 mtu 1450 up",
    "link add vxkr1 address 02:6d:9b:be:e2:62 type vxlan id 101 dstport 4789 remote 192.0.2.1 local 192.0.2.11 nolearning",
    "link set dev vxkr1 address 02:6d:9b:be:e2:62 mtu 1450 master kohaku-overlay up",
    "link set dev vxkr1 type vxlan id 101 remote 192.0.2.1 local 192.0.2.11 nolearning",
    "address replace 10.128.64.1/18 dev kohaku-overlay",
    "route replace 10.128.0.0/12 via 10.128.64.254 dev kohaku-overlay proto 183",
    "route replace default via 10.128.64.254 dev kohaku-overlay proto 183 table 3083008888",
    "END",
    "bridge fdb append 00:00:00:00:00:00 dev vxkr1 dst 192.0.2.1 || rc=1",
    "{ [ ! -e /proc/sys/net/ipv4/ip_forward ] || echo '1' >/proc/sys/net/ipv4/ip_forward; } || rc=1",
    "",
  ]);
});

test.each<[string, boolean, Item[], Facts, string[]]>([
  [
    "with systemd: a script, the script that runs all, units",
    true,
    planHub(network),
    bare(true),
    [
      "file /var/lib/overlay/boot.sh",
      "file /var/lib/overlay/training/u1.sh",
      "service overlay-network.service",
      "service overlay-network-reload.service",
    ],
  ],
  [
    "without systemd: the scripts, for another init system",
    true,
    planHub(network),
    bare(),
    ["file /var/lib/overlay/boot.sh", "file /var/lib/overlay/training/u1.sh"],
  ],
  ["persist: false", false, planHub(network), bare(true), []],
  ["nothing is desired", true, [], bare(true), []],
])("%s", (_, persist, items, facts, more) => {
  expect(withBootItems(desired(items, persist), facts).slice(items.length).map(itemKey)).toEqual(more);
});

const services = withBootItems(desired(planHub(network)), bare(true)).filter((item) => item.kind === "service");
const [atStart, atReload] = services;
const sweepers =
  "systemd-networkd.service firewalld.service ufw.service nftables.service netfilter-persistent.service iptables.service ip6tables.service";

test.each<[string, Service, string[]]>([
  [
    "one unit runs before Docker, and again after services that remove foreign objects",
    atStart!,
    [
      `After=network-pre.target networking.service NetworkManager.service ${sweepers}`,
      "Before=docker.service",
      "Type=oneshot",
      "ExecStart=/bin/sh /var/lib/overlay/boot.sh",
      `WantedBy=multi-user.target ${sweepers}`,
    ],
  ],
  [
    "the other unit stays active, to be reloaded with them",
    atReload!,
    [
      `After=${sweepers}`,
      `ReloadPropagatedFrom=${sweepers}`,
      "Type=oneshot",
      "RemainAfterExit=yes",
      "ExecStart=/bin/true",
      "ExecReload=/bin/sh /var/lib/overlay/boot.sh",
      "WantedBy=multi-user.target",
    ],
  ],
])("%s", (_, { unit }, lines) => {
  const said = unit!
    .split("\n")
    .filter((line) => /^(After|Before|PartOf|ReloadProp|WantedBy|Exec|Type|Remain)/.test(line));
  expect(said).toEqual(lines);
});

const facts = ({ name, unit }: Service, boot: string, state: string, edited: boolean): Facts => {
  const sum = edited ? "0fa3f1b4" : createHash("sha256").update(unit!).digest("hex");
  const systemd = services.map((each) => `Id=${each.name}\nActiveState=${state}\nUnitFileState=${boot}`).join("\n\n");
  return parseFacts(`@@ files\n${sum}  /etc/systemd/system/${name}\n@@ systemd\n${systemd}`);
};

test.each<[string, Service, string, string, boolean, string[]]>([
  ["has run", atStart!, "enabled", "inactive", false, []],
  ["waits for the lock that we hold", atStart!, "enabled", "activating", false, []],
  ["has failed", atStart!, "enabled", "failed", false, ["state is failed, should be inactive"]],
  ["was disabled", atStart!, "disabled", "inactive", false, ["start at boot is disabled, should be enabled"]],
  ["was edited", atStart!, "enabled", "inactive", true, ["its content is not the planned one"]],
  ["is active", atReload!, "enabled", "active", false, []],
  ["was stopped", atReload!, "enabled", "inactive", false, ["state is inactive, should be active"]],
])("a unit that %s", (_, service, boot, state, edited, wrong) => {
  const found = diffItems([service], facts(service, boot, state, edited)).map(formatDifference);
  expect(found).toEqual(wrong.map((each) => `service ${service.name}: ${each}`));
});

test("the boot script is removed with the record, and shared files with the last record", () => {
  const host = bare(true);
  const recordOf = (uid: string) => {
    const items = withBootItems({ ...desired(planHub(network)), record: { ...desired([]).record, uid } }, host);
    return { ...desired([]).record, uid, items };
  };
  const one = recordOf("u1");
  const two = recordOf("u2");
  for (const { items } of [one, two])
    for (const item of items) if (item.kind === "file") host.files.set(item.path, "x");
  for (const { name } of services) host.files.set(`/etc/systemd/system/${name}`, "x");
  host.records = [one, two];
  expect(planSteps([desired([])], host).map(({ verb, item }) => `${verb} ${itemKey(item)}`)).toEqual([
    "remove file /var/lib/overlay/training/u1.sh",
  ]);
  host.records = [one]; // the other owner's record is lost, but its script shows that it is present
  expect(planSteps([desired([])], host).map(({ verb, item }) => `${verb} ${itemKey(item)}`)).toEqual([
    "remove file /var/lib/overlay/training/u1.sh",
  ]);
  host.files.delete("/var/lib/overlay/training/u2.sh");
  expect(planSteps([desired([])], host).map(({ verb, item }) => `${verb} ${itemKey(item)}`)).toEqual([
    "remove sysctl net.ipv4.ip_forward",
    "remove service overlay-network.service",
    "remove service overlay-network-reload.service",
    "remove file /var/lib/overlay/boot.sh",
    "remove file /var/lib/overlay/training/u1.sh",
  ]);
});
