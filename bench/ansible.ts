import { execFileSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import type { Lab } from "../lab/lab";

/** The work of an up by Ansible: the same devices, addresses, routes and rules, with its options for speed. */
const VENV = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "pulumi-overlay", "ansible");

/** The path of ansible-playbook. Installs it from PyPI if it is missing; undefined if that fails. */
export function ansiblePlaybook(): string | undefined {
  const program = join(VENV, "bin", "ansible-playbook");
  if (existsSync(program)) return program;
  try {
    console.log(`Installing ansible-core from PyPI into ${VENV}.`);
    execFileSync("/usr/bin/python3", ["-m", "venv", VENV], { stdio: "ignore" });
    execFileSync(join(VENV, "bin", "pip"), ["install", "--quiet", "ansible-core"], { stdio: "ignore" });
    return program;
  } catch (error) {
    console.log(`Ansible is left out: ${(error as Error).message}`);
    return undefined;
  }
}

interface Task {
  name: string;
  "ansible.builtin.shell": string;
}

const task = (name: string, shell: string): Task => ({ name, "ansible.builtin.shell": shell });

const FORWARD = [
  task("forwarding", "echo 1 >/proc/sys/net/ipv4/ip_forward"),
  task("chain", "iptables -n -L OVERLAY-FWD >/dev/null 2>&1 || iptables -N OVERLAY-FWD"),
  ...["-s", "-d"].map((flag) => {
    const rule = `OVERLAY-FWD ${flag} 10.128.0.0/12 -j ACCEPT`;
    return task(`accept ${flag}`, `iptables -C ${rule} 2>/dev/null || iptables -A ${rule}`);
  }),
  task("jump", "iptables -C FORWARD -j OVERLAY-FWD 2>/dev/null || iptables -I FORWARD 1 -j OVERLAY-FWD"),
];

const SUBNET = "10.{{ 128 + (id | int * 64) // 256 }}.{{ (id | int * 64) % 256 }}";

/** A playbook as JSON, which is valid YAML. For the default layout and small runner ids. */
function playbook(runners: number, hub: string): string {
  const tunnels = Array.from({ length: runners }, (_, i) => {
    const [id, low] = [i + 1, (i + 1) * 64];
    const address = `10.${128 + Math.floor(low / 256)}.${low % 256}.254/18`;
    return [
      `[ -e /sys/class/net/vxkr${id.toString(36)} ] || ip link add vxkr${id.toString(36)} type vxlan id ${100 + id} dstport 4789 remote $R${id} local ${hub} nolearning`,
      `ip link set vxkr${id.toString(36)} mtu 1450 up; ip addr replace ${address} dev vxkr${id.toString(36)}`,
    ].join("; ");
  });
  const remotes = Array.from({ length: runners }, (_, i) => `R${i + 1}={{ hostvars['r${i + 1}'].ansible_host }}`);
  const onHub = [
    task(
      "anchor",
      "ip link add kohaku-host type dummy 2>/dev/null || ip link add kohaku-host type bridge 2>/dev/null || :",
    ),
    task("hub address", "ip link set kohaku-host up; ip addr replace 10.128.0.1/32 dev kohaku-host"),
    task("unreachable", "ip route replace unreachable 10.128.0.0/12 metric 4096"),
    ...FORWARD,
    task("tunnels", [remotes.join("; "), ...tunnels].join("\n")),
  ];
  const nat = `POSTROUTING -s ${SUBNET}.0/18 ! -d 10.128.0.0/12 -j MASQUERADE`;
  const onRunner = [
    task("bridge", "[ -e /sys/class/net/kohaku-overlay ] || ip link add kohaku-overlay type bridge"),
    task("bridge up", "ip link set kohaku-overlay mtu 1450 up"),
    task(
      "tunnel",
      `[ -e /sys/class/net/vxlan0 ] || ip link add vxlan0 type vxlan id {{ 100 + id | int }} dstport 4789 remote ${hub} local {{ ansible_host }} nolearning`,
    ),
    task("tunnel up", "ip link set vxlan0 mtu 1450 master kohaku-overlay up"),
    task("gateway", `ip addr replace ${SUBNET}.1/18 dev kohaku-overlay`),
    task("route", `ip route replace 10.128.0.0/12 via ${SUBNET}.254 dev kohaku-overlay`),
    ...FORWARD,
    task("masquerade", `iptables -t nat -C ${nat} 2>/dev/null || iptables -t nat -A ${nat}`),
  ];
  const play = (hosts: string, tasks: Task[]) => ({ hosts, gather_facts: false, tasks });
  return JSON.stringify([play("hub", onHub), play("runners", onRunner)]);
}

/** Writes inventory and playbook to the lab's folder, and runs Ansible in the controller. */
export async function runAnsible(lab: Lab, program: string, atATime: number): Promise<void> {
  const runners = lab.hosts.filter(({ name }) => name !== "hub");
  const at = ({ name, address }: { name: string; address: string }, id: number) =>
    `${name} ansible_host=${address} id=${id}`;
  const inventory = [at(lab.host("hub"), 0), "[runners]", ...runners.map((host, i) => at(host, i + 1)), ""].join("\n");
  const config = [
    "[defaults]",
    `forks=${atATime}`,
    "interpreter_python=/usr/bin/python3",
    "[ssh_connection]",
    "pipelining=True",
    `ssh_args=-F ${lab.sshConfig} -o ControlMaster=auto -o ControlPersist=60s`,
    "",
  ].join("\n");
  const file = (name: string, text: string): string => {
    writeFileSync(join(lab.folder, name), text);
    return join(lab.folder, name);
  };
  const args = [
    "-i",
    file("inventory", inventory),
    file("site.yml", playbook(runners.length, lab.host("hub").address)),
  ];
  const env = {
    ...process.env,
    ANSIBLE_CONFIG: file("ansible.cfg", config),
    ANSIBLE_LOCAL_TEMP: join(lab.folder, "ansible"),
  };
  const { code, stdout, stderr } = await lab.controller(program, args, { env });
  if (code !== 0) throw new Error(`ansible ended with ${code}: ${stdout.slice(-2000)}${stderr}`);
}

/** Removes from a host what the measured programs have created. Not measured. */
export const CLEAN =
  "for d in $(ip -o link show | grep -oE '(vxkr[0-9a-z]+|vxlan0|kohaku-[a-z]+)' | sort -u); do ip link del $d; done; ip route flush 10.128.0.0/12 2>/dev/null; iptables -F; iptables -X; iptables -t nat -F; echo 0 >/proc/sys/net/ipv4/ip_forward";
