import { invertStep } from "../kinds";
import type { Facts } from "../model/facts";
import type { Step } from "../model/items";
import { LOCK_DIR, quote, renderWriteFiles, textFile } from "./shell";

/**
 * A timer on the host that reverts a change unless its script is moved away in time. It needs no connection and
 * no lock: the process that made the change holds the lock, and may be cut off with it.
 */
export interface RevertTimer {
  /** Of this one change; letters and digits. */
  id: string;
  seconds: number;
  /** The commands that revert the change. */
  script: string;
}

const TIMER_PREFIX = `${LOCK_DIR}/revert-`;
const timerScript = (id: string): string => `${TIMER_PREFIX}${id}.sh`;

/** Moving the script away either starts it or cancels it: it runs at most once. */
const runOnce = (file: string): string =>
  `mv ${file} ${file}.now 2>/dev/null || exit 0; sh ${file}.now; rm -f ${file}.now`;

/** In a session of its own, to survive the connection. It checks every second, so that no timer stays long after it was cancelled. */
export function renderStartTimer({ id, seconds, script }: RevertTimer): string {
  const file = timerScript(id);
  const timer = `n=0; while [ $n -lt ${seconds} ]; do sleep 1; [ -e ${file} ] || exit 0; n=$((n+1)); done; ${runOnce(file)}`;
  return `${renderWriteFiles([textFile(file, script)])} || exit 1\nsetsid sh -c ${quote(timer)} </dev/null >/dev/null 2>&1 &`;
}

/** Fails if the timer has expired. */
export const renderCancelTimer = (id: string): string =>
  `mv ${timerScript(id)} ${timerScript(id)}.off && rm -f ${timerScript(id)}.off`;

/** Changes that were never confirmed are reverted by the next conversation, before it reads the host. */
export const REVERT_UNCONFIRMED = `for f in ${TIMER_PREFIX}*.sh; do [ ! -f "$f" ] || (${runOnce('"$f"')}) >&2; done`;

/** The steps that lead back to `before`, last change first. What other programs changed meanwhile stays as it is. */
export const invertSteps = (steps: Step[], before: Facts): Step[] =>
  [...steps].reverse().flatMap((step) => invertStep(step, before));
