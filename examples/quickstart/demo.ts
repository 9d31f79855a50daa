import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Lab } from "../../lab/lab";
import { findLeftovers } from "../../lab/leftovers";
import { openIpam } from "../../provider/ipam";
import { pulumiBinDir } from "../../setup/tools.mjs";

/**
 * `npm start`: a hub and three runners in a lab on this machine, `pulumi preview` and `up` of the program beside this
 * file, pings through the overlay, an up that changes nothing, destroy, and a check that nothing is left.
 * `--keep` leaves it running.
 */
const RUNNERS = 3;
const keep = process.argv.includes("--keep");
const root = join(__dirname, "../..");
const folder = mkdtempSync(join(tmpdir(), "overlay-quickstart-"));
const bold = (text: string): string => (process.stdout.isTTY ? `\x1b[1m${text}\x1b[0m` : text);
const say = (text: string): void => console.log(`\n${bold(`▸ ${text}`)}`);

const stackFile = join(root, "Pulumi.quickstart.yaml");
const started = Date.now();
main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});

async function main(): Promise<void> {
  say(`A lab on this machine: a hub and ${RUNNERS} runners, each with its own network, disk and SSH server`);
  const lab = await Lab.up({ runners: RUNNERS, name: keep ? "quickstart" : `quickstart-${process.pid}`, keep });
  for (const { name, address } of lab.hosts) console.log(`  ${name.padEnd(4)} ${address}`);
  try {
    const stack = stackOf(lab);
    await deploy(lab, stack);
    if (keep) return lookAround(lab);
    await tearDown(lab, stack);
  } finally {
    if (!keep) await lab.down();
    if (!keep) rmSync(folder, { recursive: true, force: true });
    if (!keep) rmSync(stackFile, { force: true });
  }
  say(
    `All of it worked, in ${Math.round((Date.now() - started) / 1000)} s. Next: README.md, and \`npm start -- --keep\` to look around`,
  );
}

interface RunnerSubnet {
  runnerName: string;
  subnet: string;
  gateway: string;
  firstIp: string;
}

type Pulumi = (...args: string[]) => Promise<void>;

async function deploy(lab: Lab, pulumi: Pulumi): Promise<void> {
  say("A stack of examples/quickstart, with the hosts' addresses and the key as a secret");
  await configure(lab, pulumi);
  say("pulumi preview: the very subnets, VNIs and devices that up will give; no host is contacted");
  await pulumi("preview", "--diff");
  say("pulumi up");
  await pulumi("up", "--yes", "--skip-preview");
  say(
    "Containers on r1 and r2 (namespaces on the runners' bridges) ping each other and the hub, unfragmented at full size",
  );
  await pings(lab);
  say("pulumi up again: nothing to do, and no host is written to");
  const before = traceLines();
  await pulumi("up", "--yes", "--skip-preview", "--expect-no-changes");
  const wrote = traceLines()
    .slice(before.length)
    .filter((line) => line.includes('"conversation"'));
  if (wrote.length > 0) throw new Error(`the second up contacted hosts:\n${wrote.join("\n")}`);
  console.log("  conversations with hosts during the second up: 0");
}

async function configure(lab: Lab, pulumi: Pulumi): Promise<void> {
  const runners = lab.hosts.filter(({ name }) => name !== "hub").map(({ name, address }) => [name, address]);
  rmSync(stackFile, { force: true });
  await pulumi("stack", "init", "quickstart");
  await pulumi("config", "set", "hub", lab.host("hub").address);
  await pulumi("config", "set", "runners", JSON.stringify(Object.fromEntries(runners)));
  await pulumi("config", "set", "--secret", "privateKey", "--", lab.privateKey);
}

async function pings(lab: Lab): Promise<void> {
  const { stdout } = await lab.controller("pulumi", ["stack", "output", "--json"], {
    cwd: root,
    env: environment(lab),
  });
  const { hub, runnerSubnets } = JSON.parse(stdout) as { hub: string; runnerSubnets: RunnerSubnet[] };
  const containers = runnerSubnets.filter(({ runnerName }) => runnerName !== "r3");
  for (const { runnerName, subnet, gateway, firstIp } of containers) {
    const address = `${firstIp}/${subnet.split("/")[1]}`;
    await lab.container(runnerName, "job", { bridge: "overlay-br", address, gateway });
  }
  for (const from of containers) {
    for (const to of [...containers.map(({ firstIp }) => firstIp), hub])
      if (to !== from.firstIp) await ping(lab, from, to);
  }
}

async function ping(lab: Lab, { runnerName, firstIp }: RunnerSubnet, to: string): Promise<void> {
  const { stdout } = await lab.exec(runnerName, `ip netns exec job ping -q -c 5 -i 0.2 -M do -s 1422 ${to}`);
  const loss = /\d+% packet loss/.exec(stdout)?.[0] ?? "no answer";
  const time = /= [\d.]+\/([\d.]+)\//.exec(stdout)?.[1] ?? "?";
  console.log(`  ${firstIp.padEnd(13)} on ${runnerName} → ${to.padEnd(13)} 1450-byte packets, DF: ${loss}, ${time} ms`);
  if (!loss.startsWith("0%")) throw new Error(`${firstIp} does not reach ${to}:\n${stdout}`);
}

async function tearDown(lab: Lab, pulumi: Pulumi): Promise<void> {
  say("pulumi destroy, then a check that no host has anything of it left");
  await pulumi("destroy", "--yes", "--skip-preview");
  for (const { name } of lab.hosts) {
    const left = await findLeftovers(lab, name);
    console.log(`  ${name.padEnd(4)} interfaces, routes, chains and files of ours: ${left || "none"}`);
    if (left) throw new Error(`something is left on ${name}`);
  }
  const pool = await openIpam(`sqlite:${join(folder, "home/overlay/pool.db")}`, { offerTtl: 0, quarantine: 0 });
  const held = (await pool.leases("space/default")).filter(({ state }) => state !== "quarantined");
  const findings = await pool.admin.fsck();
  await pool.end();
  console.log(`  pool leases held: ${held.length}, problems that fsck found: ${findings.length}`);
  if (held.length + findings.length > 0) throw new Error("something is left in the pool");
}

function lookAround(lab: Lab): void {
  say("It is running. To look around:");
  console.log(`  npm run lab -- status --name ${lab.name}
  npm run lab -- exec r1 --name ${lab.name} -- ip -d link show ovl1
  npm run lab -- exec hub --name ${lab.name} -- ip route
  npm run lab -- exec r1 --name ${lab.name} -- ip netns exec job ping 10.128.0.1
To end it: npm run lab -- down --name ${lab.name}; rm -r ${folder} Pulumi.quickstart.yaml`);
}

const traceFile = join(folder, "trace.jsonl");

function traceLines(): string[] {
  try {
    return readFileSync(traceFile, "utf8").split("\n");
  } catch {
    return [];
  }
}

function stackOf(lab: Lab): Pulumi {
  mkdirSync(join(folder, "state"));
  return (...args) => run(lab, ["--color", process.stdout.isTTY ? "always" : "never", ...args]);
}

const environment = (lab: Lab): NodeJS.ProcessEnv => ({
  ...process.env,
  PATH: `${pulumiBinDir()}:${process.env.PATH}`,
  PULUMI_HOME: join(folder, "home"),
  PULUMI_BACKEND_URL: `file://${join(folder, "state")}`,
  PULUMI_CONFIG_PASSPHRASE: "quickstart",
  PULUMI_SKIP_UPDATE_CHECK: "true",
  OVERLAY_KNOWN_HOSTS: lab.knownHosts,
  OVERLAY_TRACE: traceFile,
});

async function run(lab: Lab, args: string[]): Promise<void> {
  const { code } = await lab.controller("pulumi", args, { cwd: root, env: environment(lab), stdio: "inherit" });
  if (code !== 0) throw new Error(`pulumi ${args.join(" ")} ended with exit code ${code}`);
}
