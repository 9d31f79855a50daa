import { HOLDER, LOCK, MAKE_LOCK } from "../network/lock";
import { quote } from "../network/quote";

/**
 * What runs on the host. The command line starts a root shell that reads its commands from stdin; each script then comes
 * as one command, quoted as a whole, so that no quote, heredoc, `exit` or syntax error in it can break the protocol, and
 * a script that was cut off half way does not run. Its commands read /dev/null and not the next script. After it the
 * marker line `MARK CODE` stands on both streams. End of input ends the shell: when our process dies, so does this.
 *
 * The command line itself is plain enough for any login shell.
 */
export interface RootShell {
  mark: string;
  sudo: boolean;
  /** Seconds after which the host itself ends the shell, however our side fares. */
  limit: number;
  lock?: { holder: string; wait: number };
}

/** The Debian package of each tool that a host must have. */
export const PACKAGES: Record<string, string> = { timeout: "coreutils", flock: "util-linux", ip: "iproute2" };

/** Exit code of flock for a lock that is not had in time. */
const CONFLICT = 75;

/** Says that we are in (what a login script printed before is noise), then that a tool is missing, if one is. */
const start = (tools: string): string =>
  [
    'm=$1; echo "$m start"; PATH=$PATH:/usr/sbin:/sbin; LC_ALL=C; export PATH LC_ALL;',
    `for t in ${tools}; do command -v $t >/dev/null || { echo "$t$m missing"; exit 1; }; done;`,
  ].join(" ");

/** Without sudo the user must be root already: nothing on the host may be half changed. */
const BE_ROOT = '[ "$(id -u)" = 0 ] || { echo "$m notroot"; exit 1; };';

const READY = 'echo "$m ready"; echo "$m ready" >&2;';

const FREE = `${start("timeout")} ${READY} exec timeout -k 5 "$2" sh`;

// Without -o a background child would keep the lock, and without timeout a client that was stopped would, for ever.
const LOCKED = [
  start("timeout flock"),
  BE_ROOT,
  `${MAKE_LOCK} || { echo "$m unsafe"; exit 1; };`,
  `flock -o -E ${CONFLICT} -w "$3" ${LOCK} timeout -k 5 "$2" sh -c "$5" overlay "$m" "$4"; c=$?;`,
  `[ $c = ${CONFLICT} ] && { cat ${HOLDER}; echo "$m locked"; }; exit $c`,
].join(" ");

// The trap on TERM is for timeout: dash runs no EXIT trap on a signal.
const HOLD = [
  `m=$1; trap "rm -f ${HOLDER}" EXIT; trap "exit 143" TERM;`,
  `{ printf "%s\\n" "$2"; date -u +%Y-%m-%dT%H:%M:%SZ; } >${HOLDER}; ${READY} sh; exit`,
].join(" ");

export function rootCommand({ mark, sudo, limit, lock }: RootShell): string {
  const shell = lock
    ? [LOCKED, "overlay", mark, whole(limit), whole(lock.wait), printable(lock.holder), HOLD]
    : [FREE, "overlay", mark, whole(limit)];
  const asRoot = sudo ? 'sudo -n env SSH_CONNECTION="$SSH_CONNECTION" ' : ""; // sudo clears what sshd has set
  return asRoot + ["sh", "-c", ...shell].map(quoted).join(" ");
}

/** One script, as the root shell gets it. */
export const scriptCommand = (mark: string, script: string): string =>
  `(eval ${quoted(script)}) </dev/null; c=$?; echo "${mark} $c"; echo "${mark} $c" >&2\n`;

const whole = (seconds: number): string => String(Math.max(1, Math.ceil(seconds)));

// csh would expand `!`, and fish `\\`, even within quotes.
const printable = (text: string): string => text.replace(/[^\x20-\x7e]|[\\!]/g, "?").slice(0, 500);

const quoted = (word: string): string => (/^[\w-]+$/.test(word) ? word : quote(word));
