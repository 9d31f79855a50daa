import { spawn } from "node:child_process";
import { once } from "node:events";
import { OverlayClient, type Reservation } from "pulumi-overlay/client";

// A scheduler that runs distributed training jobs: `scheduler.ts NETWORK WORKERS JOB`.
const [network = "training", workers = "4", job = `job-${Date.now()}`] = process.argv.slice(2);
const client = new OverlayClient({
  baseUrl: process.env.OVERLAY_URL ?? "http://127.0.0.1:7447",
  token: process.env.OVERLAY_ACCESS_TOKEN ?? "",
});

/** The worker of this rank on its runner. Here it is a process; with hosts it is `docker run --ip ${ip}` on `runner`. */
async function runWorker({ ip, token, runner }: Reservation, rank: number, master: string): Promise<void> {
  const env = { ...process.env, JOB: job, RANK: String(rank), WORLD_SIZE: workers, MASTER_ADDR: master, TOKEN: token };
  const command = ["--import", "tsx", new URL("worker.ts", import.meta.url).pathname];
  const [code] = await once(spawn(process.execPath, command, { env, stdio: "inherit" }), "exit");
  if (code !== 0) throw new Error(`Worker ${rank} (${ip} on ${runner}) has failed.`);
}

// All addresses or none, on as many runners as possible. With the same key, a scheduler that was started again gets the same addresses again.
const reservations = await client.reserveMany(
  { network, placement: "spread", count: Number(workers), ttl: 300 },
  { idempotencyKey: job },
);
const master = reservations[0]!.ip; // known before the first worker starts
console.log(`${job}: ${reservations.length} workers, master ${master}`);

const results = await Promise.allSettled(reservations.map((each, rank) => runWorker(each, rank, master)));

// By container, as the workers have named themselves. What a worker has not used expires.
for (const rank of reservations.keys()) await client.release({ container: `${job}-${rank}` });

const failures = results.filter(({ status }) => status === "rejected") as PromiseRejectedResult[];
for (const { reason } of failures) console.error(reason.message);
console.log(`${job}: ${failures.length === 0 ? "done" : "failed"}`);
process.exitCode = failures.length === 0 ? 0 : 1;
