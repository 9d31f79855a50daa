/** `npm run lab -- …`: the lab from a terminal. */
import { spawn } from "node:child_process";
import { Command } from "commander";
import { pulumiBinDir, pulumiEnv } from "../setup/tools.mjs";
import { Lab, refuseWithoutRoot } from "./lab";
import { isLeftOver, list, read, remove } from "./record";

const program = new Command("lab")
  .description("Linux hosts on this machine, for experiments and tests")
  .showHelpAfterError();
program.hook("preAction", refuseWithoutRoot);
const command = (text: string) => program.command(text).option("--name <name>", "which lab", "lab");

command("up")
  .description("creates a hub and this many runners")
  .argument("[runners]", "", Number, 3)
  .action(async (runners: number, { name }: { name: string }) => {
    const there = read(name);
    if (there !== undefined && !isLeftOver(there) && there.runners !== runners)
      throw new Error(`Lab "${name}" is up with ${there.runners} runners. \`npm run lab -- down\` first.`);
    const lab =
      there !== undefined && !isLeftOver(there) ? Lab.open(name) : await Lab.up({ runners, name, keep: true });
    show(lab);
  });

command("down")
  .description("removes the lab")
  .action(async ({ name }: { name: string }) => {
    const record = read(name);
    if (record !== undefined) await remove(record);
    console.log(record === undefined ? `There is no lab "${name}".` : `Lab "${name}" is gone.`);
  });

command("status")
  .description("shows its hosts, how to use them, and other labs")
  .action(({ name }: { name: string }) => {
    const others = list().filter((record) => record.name !== name);
    if (read(name) !== undefined) show(Lab.open(name));
    else console.log(`There is no lab "${name}".`);
    for (const other of others)
      console.log(`Also here: ${other.name}${isLeftOver(other) ? " (left by a run that is gone)" : ""}`);
  });

command("exec")
  .description("runs a command on a host or in the controller; without a command, a shell")
  .argument("<host>")
  .argument("[command...]")
  .usage("[options] <host> -- [command...]")
  .action(async (host: string, words: string[], { name }: { name: string }) => {
    const lab = Lab.open(name);
    const argv = words.length > 0 ? words : ["bash"];
    process.exitCode = await interact(
      host === "controller" ? lab.controllerCommand(argv) : lab.hostCommand(host, argv),
    );
  });

for (const [verb, does] of [
  ["stop", "cuts a host's power"],
  ["start", "starts it again"],
  ["rebuild", "replaces it by a new host with the same address and host key"],
] as const)
  command(verb)
    .description(does)
    .argument("<host>")
    .action(async (host: string, { name }: { name: string }) => Lab.open(name)[verb](host));

function show(lab: Lab): void {
  const name = lab.name === "lab" ? "" : ` --name ${lab.name}`;
  console.log(`Lab "${lab.name}": ${lab.hosts.length} hosts on ${lab.underlay.cidr}`);
  for (const host of lab.hosts)
    console.log(`  ${host.name.padEnd(6)} ${host.address.padEnd(14)} ${lab.state(host.name)}`);
  console.log(`Commands:
  npm run lab -- exec${name} hub -- ip route             a command on a host
  npm run lab -- exec${name} controller                  a shell that reaches the hosts, with pulumi on its PATH; there:
    ssh -F ${lab.sshConfig} hub
    pulumi config set --secret privateKey < ${lab.privateKeyPath}
    pulumi config set overlay:knownHosts ${lab.knownHosts}
  npm run lab -- down${name}                             removes the lab`);
}

function interact([command, ...args]: string[]): Promise<number> {
  process.on("SIGINT", () => {}); // the terminal sends it to the command, too
  const env = pulumiBinDir() === undefined ? process.env : pulumiEnv();
  const child = spawn(command!, args, { stdio: "inherit", env });
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => resolve(code ?? 255));
  });
}

program.parseAsync().catch((error: Error) => {
  console.error(error.message);
  process.exitCode = 1;
});
