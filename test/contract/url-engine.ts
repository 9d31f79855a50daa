import { afterEach } from "vitest";
import type { Engine } from "./fixture";
import { openPool, type Pool } from "./fixture";

/** Stores that any process opens by their URLs. They are closed after each test of the `describe` that calls this. */
export function urlEngine(name: string, newUrl: () => string): Engine {
  const opened: Pool[] = [];
  afterEach(async () => {
    for (const pool of opened.splice(0)) await pool.end();
  });
  return {
    name,
    newUrl,
    open: async (url, terms, clock) => {
      const pool = await openPool(url, { ...terms, clock });
      opened.push(pool);
      return pool;
    },
  };
}
