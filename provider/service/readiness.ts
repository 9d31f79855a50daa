import { OverlayError } from "../errors";
import type { Pool } from "../pool/types";
import { DEFAULT_SPACE } from "../pool-names";

/** Milliseconds. */
const STORE_TIMEOUT = 2000;

/** A check whether the store answers; `STORE_UNAVAILABLE` if not. Calls at the same time share one read. */
export function readinessOf(pool: Pool): () => Promise<void> {
  let check: Promise<void> | undefined;
  return () => {
    check ??= readStore(pool).finally(() => {
      check = undefined;
    });
    return check;
  };
}

async function readStore(pool: Pool): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(storeLateError()), STORE_TIMEOUT);
  });
  try {
    await Promise.race([pool.spec(DEFAULT_SPACE), late]);
  } finally {
    clearTimeout(timer);
  }
}

const storeLateError = (): OverlayError =>
  new OverlayError(
    "STORE_UNAVAILABLE",
    `The store has not answered within ${STORE_TIMEOUT / 1000} s.`,
    "Check the database and the way to it.",
  );
