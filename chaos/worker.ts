import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../provider/errors";
import type { Store } from "../provider/ipam";
import { openIpam } from "../provider/ipam";
import { makeCall, type OwnerState, recordEntry } from "./calls";
import { SETTINGS } from "./chaos-pool";
import { LedgerWriter, readLedger } from "./ledger";

/**
 * A process that claims, uses and releases at random until SIGTERM: `worker.ts URL FOLDER NAME GENERATION`. A process that replaces a killed
 * one reads its ledgers first.
 */
/** Calls in progress at the same time, each for another owner: they share commits. */
const LANES = 16;
const OWNERS = 4;

async function main([url, folder, name, generation]: [string, string, string, string]): Promise<void> {
  const pool = await openWhenUp(url);
  const states = new Map<string, OwnerState>();
  for (const entry of readLedger(folder, name)) recordEntry(states, entry);
  const ledger = new LedgerWriter(folder, name, Number(generation));
  let stopped = false;
  process.once("SIGTERM", () => {
    stopped = true;
  });
  const lane = async (i: number) => {
    while (!stopped) {
      const owner = `${name}/${i}/${Math.floor(Math.random() * OWNERS)}`;
      await makeCall(pool, ledger, states, owner);
    }
  };
  await Promise.all(Array.from({ length: LANES }, (_, i) => lane(i)));
  ledger.close();
  await pool.end();
}

/** Waits while the server is down. */
async function openWhenUp(url: string): Promise<Store> {
  for (;;) {
    try {
      return await openIpam(url, SETTINGS);
    } catch (error) {
      if (!isOverlayError(error, "STORE_UNAVAILABLE")) throw error;
      await sleep(200);
    }
  }
}

main(process.argv.slice(2) as [string, string, string, string]);
