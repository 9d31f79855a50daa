import { setTimeout as sleep } from "node:timers/promises";
import type { Engine } from "../../bench/engines";

/** A crash and restart of the server of an engine. */
export interface ServerFault {
  name: string;
  inject(): Promise<boolean>;
}

export function serverFaultFor({ postgres, etcd }: Engine): ServerFault | undefined {
  if (postgres) {
    const inject = async () => {
      await postgres.crash();
      await sleep(Math.random() * 500);
      await postgres.start();
      return true;
    };
    return { name: "immediate restarts of PostgreSQL", inject };
  }
  if (!etcd) return undefined;
  const inject = async () => {
    const leader = await etcd.leader();
    if (leader < 0) return false;
    await etcd.members[leader]!.kill("SIGKILL");
    await sleep(500 + Math.random() * 1500);
    await etcd.start(leader);
    return true;
  };
  return { name: "leaders of etcd killed", inject };
}
