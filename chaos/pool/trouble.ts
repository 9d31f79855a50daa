import { setTimeout as sleep } from "node:timers/promises";
import type { Engine } from "../../bench/engines";

/** What can happen to an engine's server: the whole of it crashes and comes back. Says how it is called. */
export interface Trouble {
  name: string;
  make(): Promise<boolean>;
}

export function troubleFor({ postgres, etcd }: Engine): Trouble | undefined {
  if (postgres) {
    const make = async () => {
      await postgres.crash();
      await sleep(Math.random() * 500);
      await postgres.start();
      return true;
    };
    return { name: "immediate restarts of PostgreSQL", make };
  }
  if (!etcd) return undefined;
  const make = async () => {
    const leader = await etcd.leader();
    if (leader < 0) return false;
    await etcd.members[leader]!.kill("SIGKILL");
    await sleep(500 + Math.random() * 1500);
    await etcd.start(leader);
    return true;
  };
  return { name: "leaders of etcd killed", make };
}
