import { randomBytes } from "node:crypto";
import { OverlayError } from "../../errors";
import { isChangedLast } from "../../network/kinds";
import type { Facts } from "../../network/model/facts";
import { type DesiredState, type HostRecord, itemKey, type Step } from "../../network/model/items";
import { inspectScript } from "../../network/read/facts";
import { renderCancelTimer, renderChange, renderRevert, renderStartTimer } from "../../network/render/script";
import type { CommandResult, Host, Shell } from "../connection";

/** A change, and those of its steps that could cut SSH. */
export interface GuardedChange {
  steps: Step[];
  /** What is desired after it. */
  states: DesiredState[];
  risky: Step[];
  records: HostRecord[];
  /** Files in place of records that are not records; they are renamed. */
  invalidFiles: string[];
  before: Facts;
}

/**
 * Applies a change that could lock us out. Before it a timer is started on the host that reverts it; the timer is cancelled over
 * a new connection, which proves that new connections are possible: an established one may survive a change that prevents new ones.
 * Boot scripts and units are changed last: a host that is cut off recovers by a reboot.
 */
export async function applyGuarded(
  host: Host,
  shell: Shell,
  change: GuardedChange,
  seconds: number,
): Promise<CommandResult> {
  const { steps, states, records, invalidFiles, before } = change;
  const isLast = ({ item }: Step): boolean => isChangedLast(item);
  const now = steps.filter((step) => !isLast(step));
  const id = randomBytes(8).toString("hex");
  const arm = renderStartTimer({ id, seconds, script: renderRevert(now, before) });
  const made = await requireConfirmation(host, change, seconds, async () => {
    const result = await withTimeout(
      seconds / 4,
      shell.run(wrapApply(`${arm}\n${renderChange(now, records, invalidFiles)}`), "changing it"),
    );
    const { code } = await host.exec(renderCancelTimer(id), "confirming the change", { anew: seconds / 2 });
    if (code !== 0) throw new Error("its timer could not be cancelled in time.");
    return result;
  });
  const last = await shell.run(
    `${wrapApply(renderChange(steps.filter(isLast), []))}\n${inspectScript(states)}`,
    "changing it",
  );
  return { code: last.code, stdout: made.stdout + last.stdout, stderr: made.stderr + last.stderr };
}

const wrapApply = (script: string): string => `(\n${script}\n) >&2\necho "@@ applied $?"`;

async function requireConfirmation<T>(
  host: Host,
  { risky }: GuardedChange,
  seconds: number,
  act: () => Promise<T>,
): Promise<T> {
  try {
    return await act();
  } catch (error) {
    const what = risky.map(({ verb, item }) => `${verb} ${itemKey(item)}`);
    const why = error instanceof OverlayError ? error.what : (error as Error).message;
    throw new OverlayError(
      "SSH_CUT",
      `${host.name}: after a change that affects SSH (${what.slice(0, 3).join("; ")}) no new connection was possible: ${why} The host reverts the change ${seconds} s after it was made.`,
      "Reach the host by an address that the overlay does not carry or forward, and run up again.",
      error,
    );
  }
}

async function withTimeout<T>(seconds: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`there was no answer in ${seconds} s.`)), seconds * 1000);
  });
  work.catch(() => {}); // a late error is ignored
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
