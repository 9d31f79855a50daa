import { spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, test } from "vitest";
import { reserve } from "../../provider/reservations";
import { createPool, openPool, ranges } from "./fixture";

/** Races of each kind. `npm run test:service` has a thousand. */
const RACES = 20;

/**
 * Two processes use one token at the same moment, or one uses and the other releases it: one of them succeeds. Two that release it both
 * succeed, and two that send the same request with one key get the same leases.
 */
export function raceContract(newUrl: () => string, races = RACES): void {
  const options = { timeout: 60_000 + races * 300 };
  test.each([
    ["use", "use", "TOKEN_USED won"],
    ["use", "release", "TOKEN_USED won"],
    ["release", "release", "won won"],
  ])(`%s and %s by two processes at once: %s in each of ${races} races`, options, async (a, b, expected) => {
    const { pool, workers, end } = await startRace(newUrl());
    const outcomes: Record<string, number> = {};
    for (let i = 0; i < races; i++) {
      const { token } = await reserve({ pool: pool.ipam }, { pool: "p" });
      const answers = await Promise.all([workers[0].ask(`${a} ${token}`), workers[1].ask(`${b} ${token}`)]);
      const outcome = answers.sort().join(" ");
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    }
    expect(outcomes).toEqual({ [expected]: races });
    await end();
  });

  test(`one key by two processes at once: the same three leases in each of ${races} races`, options, async () => {
    const { pool, workers, end } = await startRace(newUrl());
    const all = new Set<string>();
    for (let i = 0; i < races; i++) {
      const [first, second] = await Promise.all(workers.map((worker) => worker.ask(`reserve key-${i}`)));
      expect(second).toBe(first);
      for (const leaseId of first!.split(",")) all.add(leaseId);
    }
    expect(all.size).toBe(3 * races);
    expect(await pool.leases("pool/p")).toHaveLength(3 * races);
    await end();
  });
}

async function startRace(url: string) {
  const pool = await openPool(url, { offerTtl: 3600, quarantine: 0 });
  await createPool(pool, { ranges: ranges("10.0.0.0/16") });
  const workers = await Promise.all([startWorker(url, "x"), startWorker(url, "y")]);
  const end = async () => {
    for (const worker of workers) worker.end();
    expect(await pool.fsck()).toEqual([]);
    await pool.end();
  };
  return { pool, workers, end };
}

async function startWorker(url: string, name: string) {
  const child = spawn(process.execPath, ["--import", "tsx", join(__dirname, "token-worker.ts"), url, name], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async (): Promise<string> => (await lines.next()).value;
  expect(await next()).toBe("ready");
  return {
    ask: (line: string): Promise<string> => {
      child.stdin.write(`${line}\n`);
      return next();
    },
    end: () => child.stdin.end(),
  };
}
