import { undo } from "../kinds";
import type { Facts } from "../model/facts";
import { LOCK } from "../model/paths";
import type { Step } from "../model/steps";
import { quote, renderWrite, textFile } from "./shell";

/**
 * The timer on the host: it undoes a change by itself unless somebody takes its script away in time. It needs no
 * connection, and no lock: whoever made the change has that, and may be cut off with it in hand.
 */
export interface Revert {
  /** Of this one change; letters and digits. */
  id: string;
  seconds: number;
  /** What leads back. */
  script: string;
}

const PREFIX = `${LOCK}/revert-`;
const fileOf = (id: string): string => `${PREFIX}${id}.sh`;

/** Whoever moves the script away runs it, or has called it off: so it is run once, or never. */
const runOnce = (file: string): string =>
  `mv ${file} ${file}.now 2>/dev/null || exit 0; sh ${file}.now; rm -f ${file}.now`;

/** In a session of its own: it outlives the connection. Looks every second, so that none is left long after its end. */
export function renderArm({ id, seconds, script }: Revert): string {
  const file = fileOf(id);
  const timer = `n=0; while [ $n -lt ${seconds} ]; do sleep 1; [ -e ${file} ] || exit 0; n=$((n+1)); done; ${runOnce(file)}`;
  return `${renderWrite([textFile(file, script)])} || exit 1\nsetsid sh -c ${quote(timer)} </dev/null >/dev/null 2>&1 &`;
}

/** Ends with an error when it is too late. */
export const renderDisarm = (id: string): string => `mv ${fileOf(id)} ${fileOf(id)}.off && rm -f ${fileOf(id)}.off`;

/** What somebody changed and never confirmed is undone by who comes next, before it looks at the host. */
export const UNDO_UNCONFIRMED = `for f in ${PREFIX}*.sh; do [ ! -f "$f" ] || (${runOnce('"$f"')}) >&2; done`;

/** The steps that lead back to what `before` shows, last change first. What others changed meanwhile stays as it is. */
export const undoing = (steps: Step[], before: Facts): Step[] =>
  [...steps].reverse().flatMap((step) => undo(step, before));
