import { OverlayError } from "../../errors";
import { LOCK_DIR } from "../../network/render/shell";

/** The host and user of a shell session, for errors. */
export interface ShellContext {
  name: string;
  user: string;
  sudo: boolean;
  /** Seconds for all scripts of one conversation together. */
  operationTimeout: number;
  /** Why the connection was lost, if it was. */
  lost(): string | undefined;
}

/** timeout's own exit code, and that of a shell which it had to kill. */
const TIMED_OUT = [124, 137];

export function timeoutError({ name }: ShellContext, doing: string, seconds: number): OverlayError {
  return new OverlayError(
    "HOST_TIMEOUT",
    `${name} did not finish ${doing} within ${seconds} s.`,
    "Look for what hangs on that host, or raise operationTimeout.",
  );
}

export function connectionLostError({ name }: ShellContext, doing: string, reason: string): OverlayError {
  return new OverlayError(
    "SSH_UNREACHABLE",
    `The connection to ${name} was lost while ${doing}: ${reason}.`,
    "Run it again when the host can be reached: completed changes stay, and the next run finds what is missing.",
  );
}

/** The connection was open, and the host did not answer when a channel was to be opened. */
export function noSessionError(name: string, step: string, cause: Error): OverlayError {
  return new OverlayError(
    "SSH_UNREACHABLE",
    `${name} stopped answering on an open connection, before ${step}: ${cause.message}. Nothing was changed in this step.`,
    "Check that the host is up, and that neither a firewall nor the network in between drops packets; then run it again.",
    cause,
  );
}

/** The connection is open, but the host refuses a channel on it. */
export function sessionRefusedError(name: string, step: string, cause: Error): OverlayError {
  return new OverlayError(
    "SSH_UNREACHABLE",
    `${name} refuses a session on an open connection, before ${step}: ${cause.message}.`,
    "Look at MaxSessions in its sshd_config (10 are usual) and at its log.",
    cause,
  );
}

/** The shell did not start: sudo or the login shell failed. */
export function shellRefusedError(context: ShellContext, exit: number | undefined, stderr: string): OverlayError {
  const busybox = busyboxError(context.name, stderr);
  if (busybox) return busybox;
  const { name, user, sudo } = context;
  const said = `(exit code ${exit}: ${oneLine(stderr)})`;
  if (!sudo) {
    const fix = `Give ${user} a login shell that runs commands, without a forced command.`;
    return new OverlayError("HOST_COMMAND_FAILED", `${name} starts no shell for ${user} ${said}.`, fix);
  }
  if (/sudo\S*: (command )?not found/.test(stderr)) {
    const fix = `Install it there (Debian: apt-get install sudo), and allow \`${user} ALL=(root) NOPASSWD: ALL\`; or connect as root.`;
    return new OverlayError("SSH_SUDO", `${name} has no \`sudo\`, and user ${user} is not root.`, fix);
  }
  return new OverlayError(
    "SSH_SUDO",
    `User ${user} may not run \`sudo -n\` on ${name} ${said}.`,
    `Put \`${user} ALL=(root) NOPASSWD: ALL\` into /etc/sudoers.d/overlay there, or connect as root; if ${user} needs no ` +
      "sudo, set sudo: false.",
  );
}

/** The shell ended before its output was complete. */
export function shellEndedError(
  context: ShellContext,
  exit: number | undefined,
  stderr: string,
  doing: string,
): OverlayError {
  if (exit !== undefined && TIMED_OUT.includes(exit)) return timeoutError(context, doing, context.operationTimeout);
  const busybox = busyboxError(context.name, stderr);
  if (busybox) return busybox;
  return new OverlayError(
    "HOST_COMMAND_FAILED",
    `The shell on ${context.name} ended while ${doing} (exit code ${exit}: ${oneLine(stderr)}).`,
    "Look on that host for what ended it.",
  );
}

export function answerTooLargeError({ name }: ShellContext, doing: string): OverlayError {
  return new OverlayError(
    "HOST_COMMAND_FAILED",
    `${name} sent more than ${MAX_ANSWER_BYTES / 2 ** 20} MiB while ${doing}; the remaining output was not read.`,
    "Look on that host for what prints so much; if a program was replaced there, treat the host as compromised.",
  );
}

export function toolMissingError({ name }: ShellContext, tool: string): OverlayError {
  const fix = `Install it there: apt-get install ${PACKAGES[tool] ?? tool}.`;
  return new OverlayError("HOST_TOOL_MISSING", `${name} has no \`${tool}\`.`, fix);
}

/** The connection says `sudo: false`, and its user is not root. */
export function notRootError({ name, user }: ShellContext): OverlayError {
  return new OverlayError(
    "SSH_SUDO",
    `User ${user} is not root on ${name}, and the connection says sudo: false.`,
    `Leave sudo out (${user} then needs \`${user} ALL=(root) NOPASSWD: ALL\` in /etc/sudoers.d/overlay there), or connect as root.`,
  );
}

/** BusyBox has tools of these names with fewer options; it prints its name and the tool's usage when one is unknown. */
export function busyboxError(name: string, stderr: string): OverlayError | undefined {
  if (!/BusyBox v[\d.]+/.test(stderr)) return undefined;
  const tool = /^Usage: (\S+)/m.exec(stderr)?.[1] ?? /^(?:sh: )?([\w-]+): /m.exec(stderr)?.[1] ?? "a tool";
  return new OverlayError(
    "HOST_TOOL_MISSING",
    `\`${tool}\` on ${name} is BusyBox's, which lacks options that are needed.`,
    `Install ${PACKAGES[tool] ?? tool} there (Debian: apt-get install iproute2 util-linux coreutils). If /bin/sh is BusyBox, which prefers its own tools, make it dash or bash.`,
  );
}

/** The lock's directory is something else, or other users can open it, and so hold the lock. */
export function unsafeLockError({ name }: ShellContext): OverlayError {
  return new OverlayError(
    "HOST_COMMAND_FAILED",
    `${LOCK_DIR} on ${name} is not a directory of root with mode 0700, so other users could lock that host.`,
    `Look at it with \`ls -ld ${LOCK_DIR}\`. If no other program uses it, remove it there: every run makes it.`,
  );
}

/** `record` is what the holder wrote: its name and the time, a line each. */
export function hostLockedError(
  { name, operationTimeout }: ShellContext,
  record: string,
  waited: number,
): OverlayError {
  const [holder, since] = record.trim().split("\n");
  const byHolder = holder ? `by ${holder} since ${since ?? "an unknown time"}` : "by a run that left no name";
  return new OverlayError(
    "HOST_LOCKED",
    `${name} is locked ${byHolder}; waited ${waited} s.`,
    `Run it again when that one is done. The lock of a run that died is released at the latest after its operationTimeout (here ${operationTimeout} s).`,
  );
}

const oneLine = (text: string): string => text.trim().split("\n").slice(-3).join(" / ").slice(0, 300) || "no message";

/** The Debian package of each tool that a host must have. */
const PACKAGES: Record<string, string> = { timeout: "coreutils", flock: "util-linux", ip: "iproute2" };

/** Bytes of output that a host may send for one command. */
export const MAX_ANSWER_BYTES = 64 * 1024 * 1024;
