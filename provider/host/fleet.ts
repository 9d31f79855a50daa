import type { Fleet } from "../lifecycle/world";
import type { Machine } from "../network/hub";
import { askMachine, type MachineQuestion } from "./machine";
import type { Reconciler } from "./reconcile";
import { type Connection, type Host, type Hosts, machineOf } from "./types";

/** Where to log in when a resource does not say, or when its own credentials no longer work. */
export type Defaults = Partial<Omit<Connection, "host">>;

/**
 * The hosts behind one object: connections with defaults filled in, one answer per machine and question for the whole
 * run (twenty runners ask for the same hub), and reconciling.
 */
export function fleetOf(hosts: Hosts, reconciler: Reconciler, defaults: Defaults): Fleet {
  const answers = new Map<string, Promise<Machine>>();
  const seen = new Map<string, Connection>();

  async function hostOf(connection: Connection): Promise<Host> {
    const full = { ...defaults, ...connection };
    const key = machineOf(full);
    const fallbacks = [seen.get(key), { ...connection, ...defaults }].filter((c) => c !== undefined);
    const host = await hosts.connect(full, fallbacks);
    if (!seen.has(key)) seen.set(key, full);
    return host;
  }

  async function ask(connection: Connection, question: MachineQuestion): Promise<Machine> {
    const host = await hostOf(connection);
    const key = JSON.stringify([host.machine, question]);
    const answer = answers.get(key) ?? askMachine(host, question);
    answers.set(key, answer);
    answer.catch(() => answers.delete(key));
    return answer;
  }

  return {
    ask,
    check: async (connection, work) => reconciler.check(await hostOf(connection), work),
    apply: async (connection, work) => reconciler.apply(await hostOf(connection), work),
    inspect: async (connection, want) => reconciler.inspect(await hostOf(connection), want),
    wasWritten: (connection, uid) => reconciler.wasWritten(machineOf({ ...defaults, ...connection }), uid),
    run: async (connection, script) => (await hostOf(connection)).exec(script),
  };
}
