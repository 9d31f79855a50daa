import { OverlayError } from "../provider/errors";
import { findSpec } from "../provider/ipam/interface";
import type { Ipam } from "../provider/ipam/types";
import { DEFAULT_SPACE } from "../provider/pool-names";
import { withTimeout } from "./timeout";

/** Milliseconds. */
const STORE_TIMEOUT = 2000;

/** A check whether the store answers; `STORE_UNAVAILABLE` if not. Calls at the same time share one read. */
export function readinessOf(pool: Ipam): () => Promise<void> {
  let check: Promise<void> | undefined;
  return () => {
    check ??= readStore(pool).finally(() => {
      check = undefined;
    });
    return check;
  };
}

async function readStore(pool: Ipam): Promise<void> {
  await withStoreTimeout(findSpec(pool, DEFAULT_SPACE));
}

/** `STORE_UNAVAILABLE` if the store takes too long to answer. */
export const withStoreTimeout = <T>(work: Promise<T>): Promise<T> =>
  withTimeout(work, STORE_TIMEOUT, storeTimeoutError);

const storeTimeoutError = (): OverlayError =>
  new OverlayError(
    "STORE_UNAVAILABLE",
    `The store has not answered within ${STORE_TIMEOUT / 1000} s.`,
    "Check the database and the way to it.",
  );
