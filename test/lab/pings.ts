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
  { host, container, target, log: name = container }: { host: string; container: string; target: string; log?: string },
  act: () => Promise<unknown>,
): Promise<Loss> {
  const log = `/tmp/pings-${name}`;
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

export interface Ping {
  host: string;
  /** A container on it; absent: the host itself. */
  container?: string;
  target: string;
}

/** Pings, by default each 20 ms, while `act` runs and for a second and a half after it. The key of each names it. */
export async function lossOfAll(
  lab: Lab,
  pings: Record<string, Ping>,
  act: () => Promise<unknown>,
  interval = 0.02,
): Promise<Record<string, Loss>> {
  const started = Object.entries(pings).map(async ([name, { host, container, target }], i) => {
    const log = `/tmp/pings-${i}`;
    const from = container === undefined ? "" : `ip netns exec ${container} `;
    const start = `LC_ALL=C ${from}ping -n -i ${interval} -W 1 ${target} >${log} 2>&1 </dev/null & echo $!`;
    return { name, host, log, pid: (await must(lab, host, start)).stdout.trim() };
  });
  const running = await Promise.all(started);
  try {
    await sleep(500);
    await act();
    await sleep(1500);
  } finally {
    for (const { host, pid } of running)
      await must(lab, host, `kill -INT ${pid}; while kill -0 ${pid} 2>/dev/null; do sleep 0.02; done`);
  }
  const logs = running.map(async ({ name, host, log }): Promise<[string, Loss]> => {
    return [name, lossIn((await must(lab, host, `cat ${log}`)).stdout)];
  });
  return Object.fromEntries(await Promise.all(logs));
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
