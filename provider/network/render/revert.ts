import { invertStep } from "../kinds";
import type { Facts } from "../model/facts";
import { LOCK_DIR } from "../model/paths";
import type { Step } from "../model/steps";
import { quote, renderWriteFiles, textFile } from "./shell";

/**
 * The timer on the host: it undoes a change by itself unless somebody takes its script away in time. It needs no
 * connection, and no lock: whoever made the change has that, and may be cut off with it in hand.
 */
export interface RevertTimer {
  /** Of this one change; letters and digits. */
  id: string;
  seconds: number;
  /** What leads back. */
  script: string;
}

const TIMER_PREFIX = `${LOCK_DIR}/revert-`;
const timerScript = (id: string): string => `${TIMER_PREFIX}${id}.sh`;

/** Whoever moves the script away runs it, or has called it off: so it is run once, or never. */
const runOnce = (file: string): string =>
  `mv ${file} ${file}.now 2>/dev/null || exit 0; sh ${file}.now; rm -f ${file}.now`;

/** In a session of its own: it outlives the connection. Looks every second, so that none is left long after its end. */
export function renderStartTimer({ id, seconds, script }: RevertTimer): string {
  const file = timerScript(id);
  const timer = `n=0; while [ $n -lt ${seconds} ]; do sleep 1; [ -e ${file} ] || exit 0; n=$((n+1)); done; ${runOnce(file)}`;
  return `${renderWriteFiles([textFile(file, script)])} || exit 1\nsetsid sh -c ${quote(timer)} </dev/null >/dev/null 2>&1 &`;
}

/** Ends with an error when it is too late. */
export const renderCancelTimer = (id: string): string =>
  `mv ${timerScript(id)} ${timerScript(id)}.off && rm -f ${timerScript(id)}.off`;

/** What somebody changed and never confirmed is undone by who comes next, before it looks at the host. */
export const REVERT_UNCONFIRMED = `for f in ${TIMER_PREFIX}*.sh; do [ ! -f "$f" ] || (${runOnce('"$f"')}) >&2; done`;

/** The steps that lead back to what `before` shows, last change first. What others changed meanwhile stays as it is. */
export const invertSteps = (steps: Step[], before: Facts): Step[] =>
  [...steps].reverse().flatMap((step) => invertStep(step, before));
