import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { Lab } from "../lab/lab";
import type { Topology, TunnelName } from "../provider/network/plan/tunnels";
import { LabStack, must } from "../test/lab/lab-stack";
import { cpuMilliseconds, median, raisePriority, ratio } from "./measure";
import { PATHS, type Path, title } from "./networks";
import { table } from "./table";

/**
 * What a tunnel costs: packets from a runner to another one, by the hub or directly, beside the same made by hand and the bare underlay. Each round
 * makes, measures and removes all subjects, one after another. `bench -- tunnel [SECONDS [ROUNDS]]`, seconds for each measurement.
 */
interface Subject {
  name: string;
  /** The subject with which it is compared. */
  beside?: string;
  /** The subject whose round trip time is the measure for its own. */
  shorterThan?: string;
  /** Whether packets go from runner to runner without the hub. */
  isDirect: boolean;
  /** Makes it, and returns the address of r2 at which r1 reaches it. */
  up(at: Place): Promise<string>;
  down(at: Place): Promise<unknown>;
}

interface Place {
  lab: Lab;
  stack: LabStack;
}

/** A network of ours, on which runners accept more than pings. */
const ours = (path: Path): Subject => ({
  name: `ours, ${title(path)}`,
  beside: `${title(path)} by hand`,
  ...(path.topology === "mesh" && { shorterThan: `ours, ${title({ ...path, topology: "hub" })}` }),
  isDirect: path.topology === "mesh",
  async up({ stack }) {
    stack.nextRun();
    await stack.network({ hostAccess: "all", verify: false, ...path });
    await stack.runner("r1");
    const { gateway } = await stack.runner("r2");
    return String(gateway);
  },
  down: ({ stack }) => stack.destroy(),
});

/** Commands for each host; all underlay addresses are `$HUB`, `$R1` and `$R2`. */
interface Commands {
  hub: string;
  r1: string;
  r2: string;
  /** On each host. */
  down: string;
}

function byHand(path: Path): Subject {
  const { down, ...up } = BY_HAND[path.tunnel][path.topology];
  const all = ({ lab }: Place, scripts: Record<string, string>) => {
    const addresses = ["hub", "r1", "r2"].map((host) => `${host.toUpperCase()}=${lab.host(host).address}`).join(" ");
    return Promise.all(
      Object.entries(scripts).map(([host, script]) => must(lab, host, `export ${addresses}\n${script}`)),
    );
  };
  return {
    name: `${title(path)} by hand`,
    isDirect: path.topology === "mesh",
    async up(at) {
      await all(at, up);
      return "172.16.2.1";
    },
    down: (at) => all(at, { hub: down, r1: down, r2: down }),
  };
}

const FORWARD = "echo 1 >/proc/sys/net/ipv4/ip_forward";
const CLOSE = "echo 0 >/proc/sys/net/ipv4/ip_forward";
const vxlanOf = (device: string, id: number, to: string, address: string): string =>
  `ip link add ${device} mtu 1450 type vxlan id ${id} dstport 4789 remote ${to} && ip addr add ${address}/24 dev ${device} && ip link set ${device} up`;
const vxlanRunner = (id: number): string =>
  `${vxlanOf("byhand1", id, "$HUB", `172.16.${id}.1`)}; ip route add 172.16.0.0/16 via 172.16.${id}.254`;
const vxlanPeer = (id: number, to: string, other: number): string =>
  `${vxlanOf("byhand1", 3, to, `172.16.${id}.1`)}; ip route add 172.16.${other}.0/24 dev byhand1`;

/** Of the test alone. */
const KEYS = {
  hub: {
    secret: "kPeHEZ07jbz0A7HwPyxOytOqn4s7wfodgeqMQ0mtHn8=",
    public: "N4DEI+bwqIbnuu9uT8BuSna3k8otduk5PkImMmnjoGw=",
  },
  r1: {
    secret: "cCKrC8irsUOzwVlcb210oPHm3BQFJg8hlauD8XPy6mE=",
    public: "9117za+jV6WgR/gf4L6fi2KhBuUcUWmeWDufH1mudl0=",
  },
  r2: {
    secret: "+B22l3EwFVlORzcG0Jti7/AtCxp+cWeVZioFYXFJ500=",
    public: "6R0L1tEoPDazHxW6wUAl6IPtP+OxtObe1KJfhbj1J20=",
  },
} as const;
const RANGES = { hub: "172.16.0.0/16", r1: "172.16.1.0/24", r2: "172.16.2.0/24" } as const;
const peer = (host: keyof typeof KEYS): string =>
  `[Peer]\nPublicKey = ${KEYS[host].public}\nEndpoint = $${host.toUpperCase()}:51999\nAllowedIPs = ${RANGES[host]}\nPersistentKeepalive = 25`;
const wgQuick = (host: keyof typeof KEYS, address: string, peers: (keyof typeof KEYS)[]): string =>
  `umask 077; cat >/run/byhand1.conf <<END
[Interface]
PrivateKey = ${KEYS[host].secret}
ListenPort = 51999
Address = ${address}
${peers.map(peer).join("\n")}
END
wg-quick up /run/byhand1.conf 2>&1`;
const WG_QUICK_DOWN = `wg-quick down /run/byhand1.conf 2>&1; ${CLOSE}`;
const WIREGUARD_HUB = `${FORWARD}; ${wgQuick("hub", "172.16.0.1/32", ["r1", "r2"])}`;

const BY_HAND: Record<TunnelName, Record<Topology, Commands>> = {
  vxlan: {
    hub: {
      hub: `${FORWARD}; ${vxlanOf("byhand1", 1, "$R1", "172.16.1.254")}; ${vxlanOf("byhand2", 2, "$R2", "172.16.2.254")}`,
      r1: vxlanRunner(1),
      r2: vxlanRunner(2),
      down: `ip link del byhand1; ip link del byhand2 2>/dev/null || :; ${CLOSE}`,
    },
    mesh: {
      hub: ":",
      r1: vxlanPeer(1, "$R2", 2),
      r2: vxlanPeer(2, "$R1", 1),
      down: "ip link del byhand1 2>/dev/null || :",
    },
  },
  wireguard: {
    hub: {
      hub: WIREGUARD_HUB,
      r1: wgQuick("r1", "172.16.1.1/32", ["hub"]),
      r2: wgQuick("r2", "172.16.2.1/32", ["hub"]),
      down: WG_QUICK_DOWN,
    },
    mesh: {
      hub: WIREGUARD_HUB,
      r1: wgQuick("r1", "172.16.1.1/32", ["hub", "r2"]),
      r2: wgQuick("r2", "172.16.2.1/32", ["hub", "r1"]),
      down: WG_QUICK_DOWN,
    },
  },
};

/** What others are compared with stands before them. */
const SUBJECTS: Subject[] = [
  { name: "bare underlay", isDirect: true, up: async ({ lab }) => lab.host("r2").address, down: async () => {} },
  ...PATHS.flatMap((path) => [byHand(path), ours(path)]),
];

interface Figures {
  /** Megabits a second. */
  one: number;
  eight: number;
  /** Milliseconds. */
  rtt: number;
  /** Of all processors of this machine, for a gigabyte in one flow. */
  cpu: number;
}

export async function benchTunnel([seconds = "5", rounds = "5"]: string[]): Promise<void> {
  raisePriority();
  const lab = await Lab.up({ runners: 2 });
  try {
    const at = { lab, stack: await LabStack.on(lab) };
    await lab.exec("r2", "iperf3 -s -D >/dev/null");
    const measured = new Map(SUBJECTS.map(({ name }) => [name, [] as Figures[]]));
    for (let round = 1; round <= Number(rounds); round++)
      for (const subject of SUBJECTS)
        measured.get(subject.name)!.push(await measureSubject(subject, at, Number(seconds)));
    report(new Map([...measured].map(([name, all]) => [name, medians(all)])));
  } finally {
    await lab.down();
  }
}

async function measureSubject(subject: Subject, at: Place, seconds: number): Promise<Figures> {
  const address = await subject.up(at);
  try {
    const oneHop = subject.isDirect ? "-t 1" : "";
    const arrives = `for i in $(seq 20); do ping -c 1 -W 1 ${oneHop} ${address} >/dev/null && exit; done`;
    await must(at.lab, "r1", `${arrives}; echo "${subject.name}: no packet arrives" >&2; exit 1`);
    const ping = await must(at.lab, "r1", `ping -q -c 200 -i 0.005 ${address}`);
    const rtt = Number(/= [\d.]+\/([\d.]+)\//.exec(ping)?.[1]);
    const [one, eight] = [await sendFlows(at.lab, address, 1, seconds), await sendFlows(at.lab, address, 8, seconds)];
    return { one: one.rate, eight: eight.rate, rtt, cpu: one.cpu };
  } finally {
    await subject.down(at);
  }
}

const result = z.object({
  end: z.object({ sum_received: z.object({ bytes: z.number(), bits_per_second: z.number() }) }),
});

async function sendFlows(lab: Lab, address: string, flows: number, seconds: number) {
  await sleep(500); // the server is busy until it has ended the last test
  const before = cpuMilliseconds();
  const text = await must(lab, "r1", `iperf3 -J -c ${address} -t ${seconds} -P ${flows}`);
  const busy = cpuMilliseconds() - before;
  const { bytes, bits_per_second } = result.parse(JSON.parse(text)).end.sum_received;
  return { rate: bits_per_second / 1e6, cpu: busy / 1000 / (bytes / 1e9) };
}

const medians = (all: Figures[]): Figures => ({
  one: median(all.map(({ one }) => one)),
  eight: median(all.map(({ eight }) => eight)),
  rtt: median(all.map(({ rtt }) => rtt)),
  cpu: median(all.map(({ cpu }) => cpu)),
});

const AIM = 0.95;
const RTT_AIM = 0.7;

function report(measured: Map<string, Figures>): void {
  const rows = SUBJECTS.map(({ name, beside, shorterThan }) => {
    const { one, eight, rtt, cpu } = measured.get(name)!;
    const other = beside === undefined ? undefined : measured.get(beside);
    const share = other && Math.min(one / other.one, eight / other.eight);
    const byHub = shorterThan === undefined ? undefined : measured.get(shorterThan);
    return [
      name,
      one.toFixed(0),
      eight.toFixed(0),
      rtt.toFixed(3),
      cpu.toFixed(2),
      other
        ? `${ratio(one, other.one)} ${ratio(eight, other.eight)} ${ratio(rtt, other.rtt)} ${ratio(cpu, other.cpu)}`
        : "",
      share === undefined ? "" : share >= AIM ? "reached" : "missed",
      byHub ? `${ratio(rtt, byHub.rtt)}, ${rtt / byHub.rtt <= RTT_AIM ? "reached" : "missed"}` : "",
    ];
  });
  const header = [
    "",
    "1 flow, Mbit/s",
    "8 flows",
    "RTT, ms",
    "CPU s/GB",
    "1, 8, RTT, CPU: to the same by hand",
    `aim: ${AIM}`,
    `RTT to the same by the hub, aim: ${RTT_AIM}`,
  ];
  console.log(table([header, ...rows], [1, 2, 3, 4]));
  console.log(JSON.stringify(Object.fromEntries(measured)));
}
