import { Lab } from "../../lab/lab";
import { Random } from "../random";
import { Finding, HostSession, NETWORKS } from "./session";

/** The part of `fuzz hosts` that runs in the lab's controller, from where SSH reaches the hosts. */
export interface Options {
  lab: string;
  seed: number;
  rounds: number;
  until: number;
}

async function main({ lab: name, seed, rounds, until }: Options): Promise<void> {
  const lab = Lab.open(name);
  let session = await restart(lab, seed);
  let [done, findings] = [0, 0];
  for (let i = 0; i < rounds && Date.now() < until; i++) {
    done++;
    if (session.network !== networkOf(seed + i)) {
      await session.stop();
      session = await restart(lab, seed + i);
    }
    try {
      await session.round(new Random(seed + i));
      process.stderr.write(`round ${seed + i}: ok\n`);
    } catch (error) {
      findings++;
      const text = error instanceof Finding ? error.message : String((error as Error).stack);
      console.log(
        `\nround ${seed + i} (${Object.values(session.network).join(", ")}): ${text}\n  ${session.log.join("\n  ")}\n`,
      );
      await session.stop();
      session = await restart(lab, seed + i);
    }
  }
  await session.stop();
  console.log(`${done} rounds, ${findings} findings`);
  process.exitCode = findings === 0 ? 0 : 1;
}

/** A new network on hosts with empty disks: what a finding has left must not cause another one. */
async function restart(lab: Lab, seed: number): Promise<HostSession> {
  for (const { name } of lab.hosts) await lab.rebuild(name);
  return HostSession.start(lab, networkOf(seed));
}

/** Ten rounds on each. */
const networkOf = (seed: number) => NETWORKS[Math.floor(seed / 10) % NETWORKS.length]!;

void main(JSON.parse(process.argv[2]!) as Options);
