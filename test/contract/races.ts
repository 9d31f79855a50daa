import { spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, test } from "vitest";
import { openPool } from "../../provider/pool";
import { reserve } from "../../provider/reservations";
import { extents, opened } from "./fixture";

/** How often two processes race for one token; `OVERLAY_RACES=1000` for a longer run. */
const RACES = Number(process.env.OVERLAY_RACES ?? 50);

/** Two processes redeem one token at the same moment, or one redeems and the other releases it: one of them succeeds. */
export function raceContract(newUrl: () => string): void {
  test.each([
    ["use", "use"],
    ["use", "release"],
  ])(
    `%s and %s by two processes at once: one winner in each of ${RACES} races`,
    { timeout: 60_000 + RACES * 200 },
    async (a, b) => {
      const url = newUrl();
      const pool = await openPool(url, { offerTtl: 3600, quarantine: 0 });
      await opened(pool, { extents: extents("10.0.0.0/16") });
      const racers = await Promise.all([startRacer(url, "x"), startRacer(url, "y")]);
      const outcomes: Record<string, number> = {};
      for (let i = 0; i < RACES; i++) {
        const { token } = await reserve({ pool }, { pool: "p" });
        const answers = await Promise.all([racers[0].ask(`${a} ${token}`), racers[1].ask(`${b} ${token}`)]);
        const outcome = answers.sort().join(" ");
        outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
      }
      for (const racer of racers) racer.end();
      expect(outcomes).toEqual({ "TOKEN_USED won": RACES });
      expect(await pool.fsck()).toEqual([]);
      await pool.end();
    },
  );
}

async function startRacer(url: string, name: string) {
  const child = spawn(process.execPath, ["--import", "tsx", join(__dirname, "racer.ts"), url, name], {
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
