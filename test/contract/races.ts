import { spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, test } from "vitest";
import { openPool } from "../../provider/pool";
import { reserve } from "../../provider/reservations";
import { createPool, extents } from "./fixture";

/** In how many races two processes use one token; `OVERLAY_RACES=1000` for a longer run. */
const RACES = Number(process.env.OVERLAY_RACES ?? 50);

/** Two processes use one token at the same moment, or one uses and the other releases it: one of them succeeds. */
export function raceContract(newUrl: () => string): void {
  test.each([
    ["use", "use"],
    ["use", "release"],
  ])(
    `%s and %s by two processes at once: one succeeds in each of ${RACES} races`,
    { timeout: 60_000 + RACES * 200 },
    async (a, b) => {
      const url = newUrl();
      const pool = await openPool(url, { offerTtl: 3600, quarantine: 0 });
      await createPool(pool, { extents: extents("10.0.0.0/16") });
      const workers = await Promise.all([startWorker(url, "x"), startWorker(url, "y")]);
      const outcomes: Record<string, number> = {};
      for (let i = 0; i < RACES; i++) {
        const { token } = await reserve({ pool }, { pool: "p" });
        const answers = await Promise.all([workers[0].ask(`${a} ${token}`), workers[1].ask(`${b} ${token}`)]);
        const outcome = answers.sort().join(" ");
        outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
      }
      for (const worker of workers) worker.end();
      expect(outcomes).toEqual({ "TOKEN_USED won": RACES });
      expect(await pool.fsck()).toEqual([]);
      await pool.end();
    },
  );
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
