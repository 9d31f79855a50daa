import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { formatIp } from "../../provider/addressing/ip";
import { parseLayout, runnerLayout } from "../../provider/addressing/layout";
import type { Host } from "../../provider/host/connection";
import { readUnderlay } from "../../provider/host/fleet";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ApplyRequest, ConversationReport } from "../../provider/host/reconcile/requests";
import type { Item } from "../../provider/network/model/items";
import { planHub, planRunner, planTunnel, type Underlay } from "../../provider/network/plan/hub";
import { type Forward, planCarrier, planReturn } from "../../provider/network/plan/static-ip";
import { training } from "../network";
import { labHost } from "./lab-stack";
import { ask, type Client, hasSctp, serve } from "./services";

/** A static address on real kernels, with real clients. test/e2e tests it with the pool and Pulumi. */
let lab: Lab;
let reports: ConversationReport[];
let warnings: string[];
let reconciler: Reconciler;
/** As they see each other in IPv4, and in IPv6. */
const underlays: Record<string, Underlay> = {};
const underlays6: Record<string, Underlay> = {};

const network = training({
  layouts: [parseLayout("10.128.0.0/12/6/14"), parseLayout("fd00:128::/40/6/82")],
  mtu: "auto",
});
const IP = "10.254.200.10";
const IP6 = "fd00:254::200:10";
const CLIENT6 = "fd00:254::255:250";
const CIDRS = network.layouts.map(({ cidr }) => cidr);
const HOSTS = ["hub", "r1", "r2"];
const PYTHON = "/usr/bin/python3";

/** r1: web .5, mate .6; r2: mail .5. */
const WORKLOADS = { web: ["r1", 1, 5n], mate: ["r1", 1, 6n], mail: ["r2", 2, 5n] } as const;
type Workload = keyof typeof WORKLOADS;

function addressOf(workload: Workload, family: 4 | 6 = 4): string {
  const [, runner, offset] = WORKLOADS[workload];
  const layout = network.layouts.find((each) => each.family === family)!;
  return formatIp(runnerLayout(layout, runner).range.first + offset);
}

const CLIENTS: Record<string, Client> = {
  "from outside": { at: "controller" },
  "in the same subnet": { at: "r1", inside: "mate" },
  "on another runner": { at: "r2", inside: "mail" },
  "on the hub": { at: "hub" },
  "on the workload's runner": { at: "r1" },
};

const hostOf = (name: string): Host => labHost(lab, name);

const work = (uid: string, items: Item[]): ApplyRequest => ({
  record: { uid, owner: uid, network: uid.startsWith("static") ? IP : "training", store: "s" },
  items,
  fence: async () => {},
  isLeaseGone: async () => false,
  ownersHere: async () => [],
});

/** A conversation is reported after its last job is answered. */
async function put(host: string, uid: string, items: Item[]): Promise<void> {
  await reconciler.apply(hostOf(host), work(uid, items));
  await nextTurn();
}

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  reconciler = new Reconciler((report) => reports.push(report), { warn: (text) => warnings.push(text) });
  [reports, warnings] = [[], []];
  for (const name of HOSTS) {
    underlays[name] = await readUnderlay(hostOf(name), { underlayIp: lab.host(name).address, carries: IP });
    underlays6[name] = await readUnderlay(hostOf(name), { toward: CLIENT6, carries: IP6 });
    await lab.exec(name, "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
  }
  const { hub, r1, r2 } = underlays as Record<string, Underlay>;
  await put("hub", "net", planHub(network));
  await Promise.all([
    put("hub", "t1", planTunnel(network, 1, hub!, r1!)),
    put("hub", "t2", planTunnel(network, 2, hub!, r2!)),
    put("r1", "r1", planRunner(network, 1, "vxkr1", hub!, r1!)),
    put("r2", "r2", planRunner(network, 2, "vxkr2", hub!, r2!)),
  ]);
  for (const [name, [host, runner]] of Object.entries(WORKLOADS)) {
    const layouts = network.layouts.map((layout) => runnerLayout(layout, runner));
    await lab.container(host, name, {
      bridge: "kohaku-overlay",
      address: ([4, 6] as const).map(
        (family, i) => `${addressOf(name as Workload, family)}/${network.layouts[i]!.runnerPrefix}`,
      ),
      gateway: layouts.map(({ gateway }) => gateway),
    });
  }
  await serve(lab, "r1", "web", "tcp", 8080, "web");
  await serve(lab, "r1", "web", "udp", 5353, "names");
  await serve(lab, "r2", "mail", "tcp", 8080, "mail");
});

afterAll(async () => {
  await lab?.down();
});

/** The tests of a shared address build on each other; the others start without items, also after one that failed. */
afterEach(async ({ task }) => {
  if (task.name.startsWith("shared: ")) return;
  for (const host of HOSTS) for (const uid of ["static-a", "static-b"]) await put(host, uid, []);
});

const web: Forward = { protocol: "tcp", port: 80, to: addressOf("web"), toPort: 8080 };
const names: Forward = { protocol: "udp", port: 53, to: addressOf("web"), toPort: 5353 };
const mail: Forward = { protocol: "tcp", port: 25, to: addressOf("mail"), toPort: 8080 };

const carrier = (
  host: string,
  forwards: Forward[],
  preserveClientIp = false,
  runners: string[] = [],
  ip = IP,
): Item[] => {
  const seen = ip === IP ? underlays : underlays6;
  const address = { ip, forwards, preserveClientIp, cidrs: CIDRS };
  return planCarrier(
    address,
    seen[host]!,
    runners.map((name) => seen[name]!),
  );
};

const planReturnPath = (runner: 1 | 2, forwards: Forward[], family: 4 | 6 = 4): Item[] => {
  const layout = network.layouts.find((each) => each.family === family)!;
  const { subnet } = runnerLayout(layout, runner);
  return planReturn({ networkName: "training", cidr: layout.cidr, subnet, bridge: "kohaku-overlay" }, forwards);
};

const sh = async (host: string, script: string): Promise<string> => (await lab.exec(host, script)).stdout.trim();

/** The answers that each client gets on each port. */
async function askAll(forwards: Forward[], ip = IP): Promise<Record<string, string[]>> {
  const answers: Record<string, string[]> = {};
  for (const [name, client] of Object.entries(CLIENTS)) {
    answers[name] = [];
    for (const { port, protocol } of forwards) answers[name].push(await ask(lab, client, ip, port, protocol));
  }
  return answers;
}
const allAnswer = (...answers: string[]) => Object.fromEntries(Object.keys(CLIENTS).map((name) => [name, answers]));

test("shared: on the hub every kind of client reaches both services on both runners", async () => {
  await put("hub", "static-a", carrier("hub", [web, names]));
  await put("hub", "static-b", carrier("hub", [mail]));
  expect(await askAll([web, names, mail])).toEqual(
    allAnswer("web sees 10.128.64.254", "names sees 10.128.64.254", "mail sees 10.128.128.254"),
  );
  expect(warnings).toEqual([]);
});

test("shared: a second run changes nothing", async () => {
  reports = [];
  await put("hub", "static-a", carrier("hub", [web, names]));
  await put("hub", "static-b", carrier("hub", [mail]));
  expect(reports.map(({ steps }) => steps)).toEqual([0, 0]);
});

test("a shared address is removed with the last of its owners", async () => {
  await put("hub", "static-a", []);
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 25)).toBe("mail sees 10.128.128.254");
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 80)).toMatch(/refused/);
  await put("hub", "static-b", []);
  expect(
    await sh(
      "hub",
      "ip -o addr show to 10.254.200.10; ip -o link show | grep overlay-vip; iptables-save | grep -e 200.10 -e OVERLAY-DNAT",
    ),
  ).toBe("");
});

test("a forward changes its target in place, and the target may be outside of the overlay", async () => {
  await serve(lab, "r2", "", "tcp", 9000, "plain");
  await put("hub", "static-a", carrier("hub", [web]));
  reports = [];
  await put("hub", "static-a", carrier("hub", [{ ...web, to: lab.host("r2").address, toPort: 9000 }]));
  expect(reports.map(({ steps }) => steps)).toEqual([2]);
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 80)).toBe("plain sees 10.254.0.1");
});

test("a UDP client that keeps sending from one port reaches the new target", async () => {
  await serve(lab, "r2", "mail", "udp", 5353, "names2");
  await put("hub", "static-a", carrier("hub", [names]));
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 53, "udp", 40053)).toBe("names sees 10.128.64.254");
  await put("hub", "static-a", carrier("hub", [{ ...names, to: addressOf("mail") }]));
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 53, "udp", 40053)).toBe("names2 sees 10.128.128.254");
});

test("services of the carrier itself are not reachable at the address; only pings are answered", async () => {
  await put("hub", "static-a", carrier("hub", [web]));
  expect(await ask(lab, CLIENTS["from outside"]!, lab.host("hub").address, 22)).toMatch(/^SSH-2.0/);
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 22)).toMatch(/refused/);
  expect((await lab.controller("ping", ["-c", "1", "-W", "2", IP])).code).toBe(0);
});

test("a runner can carry it, for its own workloads and for those of others", async () => {
  await put("r1", "static-a", carrier("r1", [web, mail]));
  expect(await askAll([web, mail])).toEqual(allAnswer("web sees 10.128.64.1", "mail sees 10.128.64.1"));
});

test("with preserveClientIp on a runner its workloads see the addresses of clients, except those that could not be answered", async () => {
  await put("r1", "static-a", carrier("r1", [web], true));
  expect(await askAll([web])).toEqual({
    "from outside": [`web sees ${lab.controllerAddress}`],
    "in the same subnet": ["web sees 10.128.64.1"],
    "on another runner": [`web sees ${lab.host("r2").address}`],
    "on the hub": [`web sees ${lab.host("hub").address}`],
    "on the workload's runner": ["web sees 10.128.64.1"],
  });
});

/** Docker enables it: bridged packets then pass the firewall, too. */
test.each([0, 1])(
  "with preserveClientIp on the hub workloads see the addresses of clients, with bridge-nf-call-iptables %i",
  async (bridgeNf) => {
    for (const name of ["r1", "r2"]) {
      const { code } = await lab.exec(name, `sysctl -qw net.bridge.bridge-nf-call-iptables=${bridgeNf}`);
      if (code !== 0)
        console.warn(`skipped: this kernel has no br_netfilter, so bridge-nf-call-iptables is not ${bridgeNf}`);
    }
    await put("hub", "static-a", carrier("hub", [web, names], true, ["r1"]));
    await put("r1", "static-a", planReturnPath(1, [web, names]));
    const answersSeeing = (client: string) => [`web sees ${client}`, `names sees ${client}`];
    expect(await askAll([web, names])).toEqual({
      "from outside": answersSeeing(lab.controllerAddress),
      "in the same subnet": answersSeeing("10.128.64.254"),
      "on another runner": answersSeeing(lab.host("r2").address),
      "on the hub": answersSeeing("10.128.64.254"),
      "on the workload's runner": answersSeeing("10.128.64.254"),
    });
    const outward = `ip netns exec web ${PYTHON} -c 'import socket; print(socket.create_connection(("${lab.host("r2").address}", 9000), 3).recv(99).decode())'`;
    expect(await sh("r1", outward)).toBe(`plain sees ${lab.host("r1").address}`); // connections that a workload opens are routed as before
    reports = [];
    await put("r1", "static-a", planReturnPath(1, [web, names]));
    expect(reports.map(({ steps }) => steps)).toEqual([0]);
    await put("hub", "static-a", []);
    await put("r1", "static-a", []);
    expect(await sh("r1", "ip rule | grep 18300; iptables-save | grep OVERLAY-BACK")).toBe("");
  },
);

test("IPv6: answers, preserveClientIp, and nothing left", async () => {
  const web6 = { ...web, to: addressOf("web", 6) };
  const mail6 = { ...mail, to: addressOf("mail", 6) };
  await put("hub", "static-a", carrier("hub", [web6], true, ["r1"], IP6));
  await put("hub", "static-b", carrier("hub", [mail6], false, [], IP6));
  await put("r1", "static-a", planReturnPath(1, [web6], 6));
  expect(await askAll([web6, mail6], IP6)).toEqual({
    "from outside": [`web sees ${CLIENT6}`, "mail sees fd00:128:8::fe"],
    "in the same subnet": ["web sees fd00:128:4::fe", "mail sees fd00:128:8::fe"],
    "on another runner": ["web sees fd00:254::1:2", "mail sees fd00:128:8::fe"],
    "on the hub": ["web sees fd00:128:4::fe", "mail sees fd00:128:8::fe"],
    "on the workload's runner": ["web sees fd00:128:4::fe", "mail sees fd00:128:8::fe"],
  });
  reports = [];
  await put("hub", "static-a", carrier("hub", [web6], true, ["r1"], IP6));
  await put("r1", "static-a", planReturnPath(1, [web6], 6));
  expect(reports.map(({ steps }) => steps)).toEqual([0, 0]);
  for (const [host, uid] of [
    ["hub", "static-a"],
    ["hub", "static-b"],
    ["r1", "static-a"],
  ] as const)
    await put(host, uid, []);
  expect(await sh("hub", "ip -o addr show to fd00:254::200:10; ip6tables-save | grep -e 200:10 -e OVERLAY-DNAT")).toBe(
    "",
  );
  expect(await sh("r1", "ip -6 rule | grep 18300; ip6tables-save | grep BACK")).toBe("");
});

/** Which host has the address in the neighbour table of the controller. */
const findCarrier = async (): Promise<string> => {
  const { stdout } = await lab.controller("ip", ["neigh", "show", IP]);
  const mac = /lladdr (\S+)/.exec(stdout)?.[1];
  return lab.hosts.find((host) => host.mac === mac)?.name ?? `no host (${stdout.trim()})`;
};

/** Until all announcements have been sent, of which the last one comes 7 seconds after the address. */
async function until(what: () => Promise<string>, expected: string): Promise<string> {
  const end = Date.now() + 30_000;
  let last = await what();
  while (last !== expected && Date.now() < end) {
    await sleep(100);
    last = await what();
  }
  return last;
}

const HIDE = "mv $(command -v arping) /root/";
const TOOLS: [tool: string, prepare: string][] = [
  ["arping as it is installed", ":"],
  ["busybox by the name of arping", `${HIDE} && ln -s $(command -v busybox) /usr/local/sbin/arping`],
  ["busybox alone", HIDE],
];

/** On a host with these tools. */
async function withTools(host: string, prepare: string, act: () => Promise<void>): Promise<void> {
  const { code, stderr } = await lab.exec(host, prepare);
  expect(`${code} ${stderr}`).toBe("0 ");
  await act();
  await lab.exec(host, "rm -f /usr/local/sbin/arping; [ ! -e /root/arping ] || mv /root/arping /usr/sbin/");
  await lab.exec(host, "[ ! -e /root/busybox ] || mv /root/busybox /usr/bin/");
}

test.each(TOOLS)("the move is announced to neighbours, by %s", (_, prepare) =>
  withTools("r2", prepare, async () => {
    await put("hub", "static-a", carrier("hub", [web]));
    await ask(lab, CLIENTS["from outside"]!, IP, 80);
    expect(await until(findCarrier, "hub")).toBe("hub");
    warnings = [];
    await put("r2", "static-a", carrier("r2", [web]));
    expect(await until(findCarrier, "r2")).toBe("r2");
    expect(warnings).toEqual([]);
  }),
);

test("a host without a tool for announcements prints a warning", () =>
  withTools("r2", `${HIDE} && mv $(command -v busybox) /root/`, async () => {
    warnings = [];
    await put("r2", "static-a", carrier("r2", [web]));
    expect(warnings).toEqual([
      expect.stringMatching(/^r2: neighbours on eth0 were not notified that this host now has 10\.254\.200\.10, /),
    ]);
  }));

test("the move is announced to IPv6 neighbours, too", async () => {
  const forward = { ...web, to: addressOf("web", 6) };
  const seenBy = async () => (await lab.controller("ip", ["neigh", "show", IP6])).stdout;
  await put("hub", "static-a", carrier("hub", [forward], false, [], IP6));
  await ask(lab, CLIENTS["from outside"]!, IP6, 80);
  expect(await seenBy()).toContain(lab.host("hub").mac);
  await put("r2", "static-a", carrier("r2", [forward], false, [], IP6));
  const moved = async () => String((await seenBy()).includes(lab.host("r2").mac));
  expect(await until(moved, "true")).toBe("true");
});

/** The controller has this machine's files. */
const STOP = join(mkdtempSync(join(tmpdir(), "requests-")), "stop");
/** A request every 50 ms until that file exists; prints the longest time between two answers, in milliseconds. */
const REQUESTS = `
import os, socket, time
start = last = time.time(); worst = lost = sent = 0
while not os.path.exists("${STOP}") and time.time() < start + 120:
    sent += 1
    try:
        s = socket.socket(); s.settimeout(0.25); s.connect(("${IP}", 80)); s.recv(99); s.close()
        worst = max(worst, time.time() - last); last = time.time()
    except OSError:
        lost += 1
    time.sleep(0.05)
print(f"{lost} of {sent} requests lost, at most {worst * 1000:.0f} ms without an answer, the last {time.time() - last:.1f} s ago")
`;

test("a move from host to host: the new one is configured first, then the old one is cleaned", async () => {
  await put("hub", "static-a", carrier("hub", [web]));
  const requests = lab.controller(PYTHON, ["-c", REQUESTS]);
  await sleep(2000);
  await put("r2", "static-a", carrier("r2", [web]));
  await put("hub", "static-a", []);
  expect(await until(findCarrier, "r2")).toBe("r2");
  await sleep(1000);
  writeFileSync(STOP, "");
  const { stdout, stderr } = await requests;
  rmSync(dirname(STOP), { recursive: true });
  console.log(`moved from hub to r2 amid requests: ${stdout.trim()}`);
  expect(`${stdout}${stderr}`).toMatch(/the last 0\.\d s ago/);
});

test("SCTP", async ({ skip }) => {
  const phone: Forward = { protocol: "sctp", port: 3868, to: addressOf("web"), toPort: 3868 };
  await put("hub", "static-a", carrier("hub", [phone]));
  reports = [];
  await put("hub", "static-a", carrier("hub", [phone]));
  expect(reports.map(({ steps }) => steps)).toEqual([0]);
  if (!(await hasSctp(lab))) skip("this kernel has no SCTP: its rules stand, but no packet was sent");
  await serve(lab, "r1", "web", "sctp", 3868, "phone");
  expect(await ask(lab, CLIENTS["from outside"]!, IP, 3868, "sctp")).toBe("phone sees 10.128.64.254");
});
