/** Where our files are on a host. */

export const RECORD_DIR = "/var/lib/overlay";
/** Runs the script of every record. */
export const BOOT_SCRIPT = `${RECORD_DIR}/boot.sh`;
/** The first restores everything at boot; the second restores it when services that flush rules or addresses reload. */
export const SERVICES = ["overlay-network.service", "overlay-network-reload.service"] as const;

export const unitPath = (name: string): string => `/etc/systemd/system/${name}`;

/** Of one owner: the network that it is part of, and its uid. */
interface OwnerKey {
  network: string;
  uid: string;
}

/** The record of an owner. */
export const recordPath = ({ network, uid }: OwnerKey): string => `${RECORD_DIR}/${network}/${uid}.json`;
/** The script that restores the owner's items at boot. */
export const scriptPath = ({ network, uid }: OwnerKey): string => `${RECORD_DIR}/${network}/${uid}.sh`;

/** The owner of a record or script, by its path; undefined for other files. */
export function parseOwnerPath(path: string): OwnerKey | undefined {
  const [, network, uid] = /^\/var\/lib\/overlay\/([A-Za-z0-9._:-]+)\/([A-Za-z0-9-]+)\.(?:json|sh)$/.exec(path) ?? [];
  return network && uid ? { network, uid } : undefined;
}

/** The scripts for boot: their path alone shows that they are ours. */
export const isBootFile = (path: string): boolean => path === BOOT_SCRIPT || parseOwnerPath(path) !== undefined;

/** As an extended regular expression for `grep`, too. */
const OWN_FILE = "/etc/([A-Za-z0-9_-][A-Za-z0-9._-]*/)*overlay-[A-Za-z0-9._-]+";

/**
 * Which files an item can name, beside the scripts for boot: those in /etc whose name starts with `overlay-`. So a forged
 * record cannot have a file of another program removed.
 */
export const isOwnPath = (path: string): boolean => path.length < 200 && new RegExp(`^${OWN_FILE}$`).test(path);

/** The paths of such files in all records. A file that is no longer desired is in no request. */
export const RECORDED_FILES = `$(grep -aohsE '${OWN_FILE}' ${RECORD_DIR}/*/*.json)`;

/** A path below /proc/sys is its key with dots and slashes exchanged. */
export const swapDotsAndSlashes = (text: string): string =>
  text.replaceAll(/[./]/g, (mark) => (mark === "." ? "/" : "."));
export const sysctlPath = (key: string): string => `/proc/sys/${swapDotsAndSlashes(key)}`;

/**
 * The host's lock: conversations and the boot script hold a `flock` on this directory. Only root can open
 * it: on one that others can open, any local user could hold the lock. It stays until the next boot, because removing it
 * would let a waiting process and a new one lock two different directories.
 */
export const LOCK_DIR = "/run/pulumi-overlay";

/** Names the process that holds the lock, and since when. */
export const LOCK_HOLDER_FILE = `${LOCK_DIR}/holder`;

/**
 * Creates the directory. Fails if something else has its name: a symbolic link, or a directory that others can open. Uses no
 * output of `stat` that depends on the language of the host.
 */
export const MAKE_LOCK_DIR = `{ mkdir -m 0700 ${LOCK_DIR} 2>/dev/null; [ -d ${LOCK_DIR} ] && [ ! -L ${LOCK_DIR} ] && [ "$(stat -c "%u %a" ${LOCK_DIR})" = "0 700" ]; }`;
