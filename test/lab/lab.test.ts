import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { type Identity, identityOf, isAlive, run } from "../../lab/process";
import { folderOf, holder } from "../../lab/record";
import { pulumiBinDir, root } from "../../setup/tools.mjs";

/** The namespaces of a process that are not those of this machine. */
function namespaces(pid: number): string[] {
  const link = (of: number | "self", kind: string) => {
    try {
      return readlinkSync(`/proc/${of}/ns/${kind}`);
    } catch {
      return undefined; // it has ended meanwhile
    }
  };
  const other = ["net", "mnt", "pid", "uts", "ipc"].filter((kind) => link(pid, kind) !== link("self", kind));
  return other.map((kind) => link(pid, kind)).filter((name) => name !== undefined);
}

/** The traces of a lab on this machine: the namespaces of its parts, and every process in one of them. */
function traces(lab: string) {
  const holders = readdirSync(join(folderOf(lab), "processes")).map((part) => holder(lab, part)!.pid);
  const held = new Set(holders.flatMap(namespaces));
  const pids = readdirSync("/proc")
    .map(Number)
    .filter((pid) => pid > 0 && namespaces(pid).some((name) => held.has(name)));
  return { namespaces: held.size, processes: pids.map(identityOf).filter((process) => process !== undefined) };
}

/** A namespace ends with its last process, unless it is mounted somewhere. */
function expectNoTrace(lab: string, processes: Identity[]) {
  expect(processes.filter(isAlive)).toEqual([]);
  expect(existsSync(folderOf(lab))).toBe(false);
  expect(readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(folderOf(lab));
}

describe("a lab of two runners", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.up({ runners: 2 });
  });
  afterAll(() => lab.down());

  const out = async (host: string, script: string) => (await lab.exec(host, script)).stdout.trim();
  const ssh = (host: string, ...command: string[]) => lab.controller("ssh", ["-F", lab.sshConfig, host, ...command]);

  test("has a hub and the runners, at known addresses and with known keys", () => {
    expect(lab.hosts.map(({ name, address, address6 }) => [name, address, address6])).toEqual([
      ["hub", "10.254.0.1", "fd00:254::0:1"],
      ["r1", "10.254.1.1", "fd00:254::1:1"],
      ["r2", "10.254.1.2", "fd00:254::1:2"],
    ]);
    for (const { hostKey } of lab.hosts) expect(hostKey).toMatch(/^ssh-ed25519 [A-Za-z0-9+/]{68}$/);
  });

  test.each(["hub", "r1", "r2"])("%s answers the controller's ssh, with its key checked", async (host) => {
    expect(await ssh(host, "hostname; id -un")).toEqual({ code: 0, stdout: `${host}\nroot\n`, stderr: "" });
    expect(await out(host, "grep -c 'Accepted publickey for root' /run/sshd.log")).toBe("1");
  });

  test("user ops is not root, and may run sudo", async () => {
    const { stdout } = await lab.controller("ssh", ["-F", lab.sshConfig, "ops@r1", "id -un; sudo -n id -un"]);
    expect(stdout).toBe("ops\nroot\n");
  });

  test("hosts have disks, networks, processes and names of their own", async () => {
    await lab.exec(
      "r1",
      "touch /etc/mine /root/mine; ip link add mine type bridge; echo 1 >/proc/sys/net/ipv4/ip_forward",
    );
    await lab.exec("r1", "sleep 4321 >/dev/null 2>&1 &");
    const seen =
      "ls /etc/mine /root/mine 2>/dev/null; ip -br link show mine 2>/dev/null; pgrep -fx 'sleep 4321'; hostname";
    expect((await out("r1", seen)).split("\n")).toHaveLength(5);
    expect(await out("r2", seen)).toBe("r2");
    expect(existsSync("/etc/mine")).toBe(false);
    expect(await out("r2", "cat /proc/sys/net/ipv4/ip_forward")).toBe("0");
  });

  test("a host sees neither the home of this machine's root nor files of the provider on it", async () => {
    expect(await out("r2", "ls -A /root; ls -d /var/lib/overlay /etc/overlay 2>/dev/null; ls -A /tmp /home")).toBe(
      [".ssh", "/home:", "ops", "", "/tmp:"].join("\n"),
    );
  });

  test.skipIf(pulumiBinDir() === undefined)("`exec controller` has pulumi on its PATH", async () => {
    const command = ["npm", "run", "--silent", "lab", "--", "exec", "--name", lab.name, "controller", "--"];
    const { code, stdout, stderr } = await run([...command, "pulumi", "version"], { cwd: root });
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/^v3\.\d+\.\d+\s*$/);
  });

  test("the controller sees this machine's files, the hosts by name, and no other network", async () => {
    const script = `ls -d "$PWD"; ping -c 1 -W 10 r2 >/dev/null && echo reached; ip -br link | cut -d' ' -f1; ip route`;
    const { stdout } = await lab.controller("sh", ["-c", script], { cwd: __dirname });
    expect(
      stdout
        .replace(/@if\d+| +$/gm, "")
        .trim()
        .split("\n"),
    ).toEqual([
      __dirname,
      "reached",
      "lo",
      "eth0",
      "10.254.0.0/16 dev eth0 proto kernel scope link src 10.254.255.250",
    ]);
  });

  test("hosts reach each other over IPv4 and IPv6 with full-size packets", async () => {
    for (const [address, size] of [
      ["10.254.1.2", 1472],
      ["fd00:254::1:2", 1452],
    ] as const)
      expect(await out("r1", `ping -q -c 1 -W 10 -M do -s ${size} ${address}`)).toContain(" 0% packet loss");
  });

  test("containers on a bridge of a host reach it and each other", async () => {
    await lab.exec("r1", "ip link add br9 type bridge; ip link set br9 up; ip addr add 10.9.0.1/24 dev br9");
    await lab.container("r1", "c1", { bridge: "br9", address: "10.9.0.5/24", gateway: "10.9.0.1" });
    await lab.container("r1", "c2", { bridge: "br9", address: ["10.9.0.6/24", "fd09::6/64"], mtu: 1400 });
    expect(await out("r1", "ip netns exec c1 ping -q -c 1 -W 10 10.9.0.6")).toContain(" 0% packet loss");
    expect(await out("r1", "ip -n c1 route show default")).toBe("default via 10.9.0.1 dev eth0");
    expect(await out("r1", "ip -n c2 link show eth0")).toContain("mtu 1400");
  });

  test("a stopped host starts with the same disk, address and key, and an empty network", async () => {
    await lab.exec("r2", "touch /etc/kept /run/lost; ip link add lost type bridge");
    await lab.stop("r2");
    expect(lab.state("r2")).toBe("down");
    expect((await ssh("r2", "-o", "ConnectTimeout=1", "true")).code).toBe(255);
    await lab.start("r2", { late: 2 });
    expect(lab.state("r2")).toBe("sshd does not listen");
    while (lab.state("r2") !== "up") await sleep(50);
    expect((await ssh("r2", "ls /etc/kept /run/lost 2>/dev/null; ls /sys/class/net")).stdout).toBe(
      "/etc/kept\neth0\nlo\n",
    );
  });

  test("a rebuilt host is new, at the same address and with the same key", async () => {
    await lab.exec("r2", "touch /etc/old /root/old");
    await lab.rebuild("r2");
    expect((await ssh("r2", "ls /etc/old /root/old")).code).toBe(2);
  });

  test("another lab can run at the same time, but not with the same name", async () => {
    const other = await Lab.up({ runners: 0 });
    try {
      expect((await other.exec("hub", "ping -c 1 -W 1 10.254.1.1")).code).toBe(1);
      await expect(Lab.up({ runners: 1, name: lab.name })).rejects.toThrow(`There is a lab "${lab.name}" already.`);
    } finally {
      await other.down();
    }
  });
});

test("down leaves no namespace, mount, process or folder", async () => {
  const lab = await Lab.up({ runners: 2 });
  const server = lab.spawnInController("sleep", ["1000"], { stdio: "ignore" });
  const there = traces(lab.name);
  expect(there.namespaces).toBe(2 + 2 + 3 * 5);
  expect(there.processes.map(({ pid }) => pid)).toContain(server.pid);
  await lab.down();
  expectNoTrace(lab.name, there.processes);
});

test("the lab of a killed run is removed by the next up", async () => {
  const name = `killed-${process.pid}`;
  const program = `
    const { Lab } = require("${join(__dirname, "../../lab/lab")}");
    Lab.up({ runners: 1, name: "${name}" }).then(() => setInterval(console.log, 50, "up"));`;
  const child = spawn(process.execPath, ["--import", "tsx", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  await once(child.stdout, "data");
  child.kill("SIGKILL");
  await once(child, "exit");
  const there = traces(name);
  expect(there.namespaces).toBe(2 + 2 + 2 * 5);
  expect(() => Lab.open(name)).toThrow("was left by a run that is gone");

  const lab = await Lab.up({ runners: 0 });
  await lab.down();
  expectNoTrace(name, there.processes);
});
