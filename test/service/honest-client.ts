import { setTimeout as sleep } from "node:timers/promises";
import { OverlayClient } from "../../client";

/**
 * A client process, `honest-client.ts URL TOKEN`: prints a blank line, reserves, uses and releases until its input ends, and prints the milliseconds of a
 * request in each round as JSON. It shares no connection and no time with the clients that disturb it.
 */
async function main([baseUrl, token]: string[]): Promise<void> {
  const client = new OverlayClient({ baseUrl: baseUrl!, token: token!, retries: 0, timeout: 20_000 });
  const latencies: number[] = [];
  let isStopped = false;
  process.stdin.resume().once("end", () => {
    isStopped = true;
  });
  process.stdout.write("\n");
  while (!isStopped) {
    const started = performance.now();
    await client.withAddress("node1", async () => {}); // three requests
    latencies.push((performance.now() - started) / 3);
    await sleep(10);
  }
  process.stdout.write(JSON.stringify(latencies));
}

void main(process.argv.slice(2));
