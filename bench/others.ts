import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import type { Lab } from "../lab/lab";
import { describeNetwork, type Path, type Step } from "./networks";

/** Programs that configure hosts over SSH, with their options for speed. All get the same steps for each host. */
export const OTHERS = ["Ansible", "Ansible with Mitogen", "pyinfra"] as const;
export type Other = (typeof OTHERS)[number];

/** The newest that work together: Mitogen 0.3.54 knows ansible-core up to 2.19. */
const PACKAGES = ["ansible-core==2.19.14", "mitogen==0.3.54", "pyinfra==3.10.0"];
const FORKS = 8;

const CACHE = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
const VENV = join(CACHE, "pulumi-overlay", `python-${PACKAGES.join("-").replaceAll("==", "-")}`);

/** Installs them from PyPI if they are missing. false: that fails, and they are left out. */
export function installOthers(): boolean {
  if (existsSync(join(VENV, "bin", "pyinfra"))) return true;
  try {
    console.log(`Installing ${PACKAGES.join(", ")} from PyPI into ${VENV}.`);
    execFileSync("/usr/bin/python3", ["-m", "venv", VENV], { stdio: "ignore" });
    execFileSync(join(VENV, "bin", "pip"), ["install", "--quiet", ...PACKAGES], { stdio: "ignore" });
    return true;
  } catch (error) {
    console.log(`Ansible, Mitogen and pyinfra are left out: ${(error as Error).message}`);
    return false;
  }
}

/** Makes the network on the hub and the first runners of the lab, or brings it up to date. */
export async function runOther(other: Other, lab: Lab, path: Path, runners: number): Promise<void> {
  const hosts = lab.hosts.slice(0, runners + 1);
  const steps = describeNetwork(path, hosts);
  const inventory = hosts.map(({ name, address }) => ({ name, address, steps: steps[name]! }));
  const file = (name: string, text: string): string => {
    writeFileSync(join(lab.folder, name), text);
    return join(lab.folder, name);
  };
  const { program, args, env } =
    other === "pyinfra" ? pyinfra(lab, inventory, file) : ansible(lab, inventory, file, other);
  const { code, stdout, stderr } = await lab.controller(join(VENV, "bin", program), args, {
    env: { ...process.env, ...env },
    cwd: lab.folder,
  });
  if (code !== 0) throw new Error(`${other} ended with ${code}: ${stdout.slice(-2000)}${stderr.slice(-2000)}`);
}

type Inventory = { name: string; address: string; steps: Step[] }[];
type WriteFile = (name: string, text: string) => string;

/** Playbook and inventory as JSON, which is valid YAML. */
function ansible(lab: Lab, inventory: Inventory, file: WriteFile, other: Other) {
  const hosts = inventory.map(({ name, address, steps }) => [name, { ansible_host: address, steps }]);
  const longest = Math.max(...inventory.map(({ steps }) => steps.length));
  const tasks = Array.from({ length: longest }, (_, i) => ({
    name: `step ${i + 1}`,
    "ansible.builtin.shell": `{{ steps[${i}].shell }}`,
    when: `steps | length > ${i}`,
  }));
  const [python] = readdirSync(join(VENV, "lib"));
  const plugins = join(VENV, "lib", python!, "site-packages", "ansible_mitogen", "plugins", "strategy");
  const config = [
    "[defaults]",
    `forks=${FORKS}`,
    "interpreter_python=/usr/bin/python3",
    ...(other === "Ansible" ? [] : [`strategy_plugins=${plugins}`, "strategy=mitogen_linear"]),
    "[ssh_connection]",
    "pipelining=True",
    `ssh_args=-F ${lab.sshConfig} -o ControlMaster=auto -o ControlPersist=60s`,
    "",
  ].join("\n");
  return {
    program: "ansible-playbook",
    args: [
      "-i",
      file("inventory.json", JSON.stringify({ all: { hosts: Object.fromEntries(hosts) } })),
      file("site.yml", JSON.stringify([{ hosts: "all", gather_facts: false, tasks }])),
    ],
    env: { ANSIBLE_CONFIG: file("ansible.cfg", config), ANSIBLE_LOCAL_TEMP: join(lab.folder, "ansible") },
  };
}

function pyinfra(lab: Lab, inventory: Inventory, file: WriteFile) {
  file("pyinfra.json", JSON.stringify(inventory));
  const login = {
    ssh_user: "root",
    ssh_key: lab.privateKeyPath,
    ssh_known_hosts_file: lab.knownHosts,
    ssh_strict_host_key_checking: "yes",
  };
  const hosts = [
    "import json",
    `login = json.loads('${JSON.stringify(login)}')`,
    'every = json.load(open("pyinfra.json"))',
    'hosts = [(each["name"], {"ssh_hostname": each["address"], "steps": each["steps"], **login}) for each in every]',
  ];
  const deploy = [
    "from pyinfra import host",
    "from pyinfra.operations import server",
    "for step in host.data.steps:",
    '    server.shell(name=step["name"], commands=[step["shell"]])',
  ];
  return {
    program: "pyinfra",
    args: ["-y", file("inventory.py", hosts.join("\n")), file("deploy.py", deploy.join("\n"))],
    env: {},
  };
}
