import { Connection } from "./connection";
import type { Command, CycleAnswer } from "./drivers";
import { STEPS, type Step, summarizeLatencies } from "./latencies";

/** A process that sends requests, as commands from IPC say. It shares no process with the service that it measures. */
process.on("message", async (command: Command) => {
  process.send!(await runCycles(command).catch((error: Error) => ({ error: error.message })));
});
process.on("disconnect", () => process.exit());
process.send!("ready");

/** Clients send a request again that the service could not do at the moment. */
const UNAVAILABLE = 503;
const ATTEMPTS = 5;

/** Reserve, use and release, again and again by each client, until the time is over. */
async function runCycles({ urls, base, runner, token, clients, milliseconds }: Command): Promise<CycleAnswer> {
  const open = (_: unknown, i: number) => Connection.open(urls[i % urls.length]!, token);
  const connections = await Promise.all(Array.from({ length: clients }, open));
  const latencies: Record<Step, number[]> = { reserve: [], use: [], release: [] };
  const held = new Set<string>();
  let [cycles, duplicates, repeated] = [0, 0, 0];
  const from = performance.now();

  const send = async (connection: Connection, step: Step, query: string): Promise<string> => {
    for (let attempt = 1; ; attempt++) {
      const sent = performance.now();
      const { status, body } = await connection.post(`${base}/ip/${step}?${query}`);
      latencies[step].push(performance.now() - sent);
      if (status === 200) return body;
      if (status !== UNAVAILABLE || attempt === ATTEMPTS) throw new Error(`${step} answered ${status}: ${body}`);
      repeated++;
    }
  };
  const runClient = async (connection: Connection, client: number): Promise<void> => {
    for (let i = 0; performance.now() - from < milliseconds; i++) {
      const container = `c${process.pid}-${client}-${i}`;
      const reserved = JSON.parse(await send(connection, "reserve", `runner=${runner}&ttl=300`));
      if (held.has(reserved.ip)) duplicates++;
      held.add(reserved.ip);
      await send(connection, "use", `token=${reserved.token}&container=${container}`);
      held.delete(reserved.ip); // as soon as the release is sent, another client may get it
      await send(connection, "release", `container=${container}`);
      cycles++;
    }
  };

  try {
    await Promise.all(connections.map(runClient));
    const time = performance.now() - from;
    const all = STEPS.flatMap((step) => latencies[step]);
    const steps = Object.fromEntries(STEPS.map((step) => [step, summarizeLatencies(latencies[step])]));
    const summary = { ...summarizeLatencies(all), steps: steps as CycleAnswer["steps"] };
    return { cycles, milliseconds: time, duplicates, repeated, ...summary };
  } finally {
    for (const connection of connections) connection.close();
  }
}
