import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { parseLayout } from "../../provider/addressing/layout";
import { dryRun } from "../../provider/host/reconcile/dry-run";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest } from "../../provider/host/reconcile/requests";
import { planHub } from "../../provider/network/plan/hub";
import { training } from "../network";
import { labHost, must } from "./lab-stack";

/** What becomes of a host's forwarding: its former value, and what others have come to need. */
let lab: Lab;
let warnings: string[];

const network = training({ layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/40/6/82")] });
const request = (items = planHub(network)): ApplyRequest => ({
  record: { uid: "net", owner: "net", network: "training", store: "s" },
  items,
  persist: true,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
});
const removal = (): ApplyRequest => ({ ...request([]), plannedItems: planHub(network) });
const apply = (desired: ApplyRequest) =>
  new Reconciler(() => {}, { warn: (text) => warnings.push(text) }).apply(labHost(lab, "hub"), desired);
const sh = (script: string): Promise<string> => must(lab, "hub", script);

beforeAll(async () => {
  lab = await Lab.up({ runners: 0 });
});
afterAll(async () => {
  await lab?.down();
});
beforeEach(async () => {
  await lab.rebuild("hub");
  warnings = [];
});

describe.each([
  [4, "iptables", "net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward", "192.0.2.1/24"],
  [6, "ip6tables", "net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding", "2001:db8::1/64"],
])("IPv%i", (_, tool, key, path, address) => {
  test.each([
    ["all files are", "rm -r /var/lib/overlay"],
    ["the former values are", "rm -r /var/lib/overlay/former"],
    ["the former values and all rules are", `rm -r /var/lib/overlay/former; ${tool} -F; ${tool} -X`],
  ])("a host that did not forward does not after the overlay either, if %s lost", async (_, lose) => {
    await apply(request());
    await sh(lose);
    await sh("[ ! -e /var/lib/overlay/boot.sh ] || sh /var/lib/overlay/boot.sh");
    await apply(request());
    await sh("sh /var/lib/overlay/boot.sh");
    await apply(request());
    expect(await sh(`${tool} -S OVERLAY-REST; cat /var/lib/overlay/former/${key} ${path}`)).toMatch(
      /-A OVERLAY-REST -j DROP\n01$/,
    );
    await apply(removal());
    expect(await sh(`cat ${path}`)).toBe("0");
    expect(warnings.filter((text) => !text.includes("systemd"))).toEqual([]);
  });

  test("a host that forwarded does so after the overlay, also if the former values are lost", async () => {
    await sh(`echo 1 >${path}`);
    await apply(request());
    await sh(`rm -r /var/lib/overlay/former; echo 0 >${path}`);
    await apply(request());
    expect(await sh(`${tool}-save | grep -c -e REST || cat /var/lib/overlay/former/${key}`)).toBe("0\n1");
    await apply(removal());
    expect(await sh(`cat ${path}`)).toBe("1");
  });

  test.each([
    [
      "a tunnel of another program",
      `ip link add theirs type vxlan id 7 dstport 9999 remote 10.254.7.7; ip link set theirs up; ip addr add ${address} dev theirs`,
      "the tunnel theirs",
    ],
    [
      "a rule of another program",
      `${tool} -N THEIRS; ${tool} -I FORWARD -j THEIRS; ${tool} -A THEIRS -i eth9 -j ACCEPT`,
      "the rule '-A THEIRS -i eth9 -j ACCEPT'",
    ],
  ])("forwarding stays for %s, with a warning in the plan and in the run", async (_, make, why) => {
    await apply(request());
    await sh(make);
    const text = `${key} stays 1, although it was 0 before the overlay, because others route here: ${why}.`;
    const plan = await dryRun(labHost(lab, "hub"), [removal()]);
    expect(plan.warnings).toEqual([expect.stringContaining(text)]);
    await apply(removal());
    expect(warnings).toContainEqual(expect.stringContaining(text));
    expect(await sh(`cat ${path}; ${tool}-save | grep -c OVERLAY || ls /var/lib/overlay 2>&1 | wc -l`)).toBe("1\n0\n1");
  });

  test("a rule for replies is no reason", async () => {
    await apply(request());
    await sh(`${tool} -I FORWARD -i eth9 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`);
    await apply(removal());
    expect(await sh(`cat ${path}`)).toBe("0");
  });
});
