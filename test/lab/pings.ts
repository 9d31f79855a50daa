import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "../../lab/lab";

export interface Loss {
  sent: number;
  lost: number;
  /** The longest sequence of lost packets. */
  longest: number;
}

/** A script that runs a command again until it succeeds, some seconds at most. */
export const tries = (command: string): string => `for i in $(seq 50); do ${command} && exit; sleep 0.2; done; exit 1`;

/** Pings from a workload, one each 50 ms, while `act` runs. */
export async function lossDuring(
  lab: Lab,
  { host, container, target }: { host: string; container: string; target: string },
  act: () => Promise<unknown>,
): Promise<Loss> {
  const log = `/tmp/pings-${container}`;
  const ping = `ip netns exec ${container} ping -n -i 0.05 -W 1 ${target}`;
  const { stdout: pid } = await must(lab, host, `LC_ALL=C ${ping} >${log} 2>&1 </dev/null & echo $!`);
  try {
    await sleep(500);
    await act();
    await sleep(1500);
  } finally {
    await must(lab, host, `kill -INT ${pid.trim()}; while kill -0 ${pid.trim()} 2>/dev/null; do sleep 0.05; done`);
  }
  return lossIn((await must(lab, host, `cat ${log}`)).stdout);
}

/** The last packet does not count: its answer may still be in transit. */
export function lossIn(log: string): Loss {
  const sent = Number(/(\d+) packets transmitted/.exec(log)?.[1] ?? 0) - 1;
  const seen = new Set([...log.matchAll(/icmp_seq=(\d+) ttl=/g)].map(([, seq]) => Number(seq)));
  let [lost, row, longest] = [0, 0, 0];
  for (let seq = 1; seq <= sent; seq++) {
    row = seen.has(seq) ? 0 : row + 1;
    lost += row > 0 ? 1 : 0;
    longest = Math.max(longest, row);
  }
  return { sent, lost, longest };
}

async function must(lab: Lab, host: string, script: string) {
  const result = await lab.exec(host, script);
  if (result.code !== 0) throw new Error(`${host}: ${result.stderr}`);
  return result;
}
