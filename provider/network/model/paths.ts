/** Where our files are on a host. */

export const RECORDS = "/var/lib/overlay";
/** Runs the script of every record. */
export const BOOT_SCRIPT = `${RECORDS}/boot.sh`;
/** The first puts everything back; the second has it done again when others reload. */
export const SERVICES = ["overlay-network.service", "overlay-network-reload.service"] as const;

export const unitPath = (name: string): string => `/etc/systemd/system/${name}`;

/** Of one owner: the network that it is part of, and its uid. */
interface Key {
  network: string;
  uid: string;
}

/** What the owner has on the host. */
export const recordPath = ({ network, uid }: Key): string => `${RECORDS}/${network}/${uid}.json`;
/** Makes it again after a boot. */
export const scriptPath = ({ network, uid }: Key): string => `${RECORDS}/${network}/${uid}.sh`;

/** The owner whose record or script this is; undefined: it is neither. */
export function ownerAt(path: string): Key | undefined {
  const [, network, uid] = /^\/var\/lib\/overlay\/([A-Za-z0-9._:-]+)\/([A-Za-z0-9-]+)\.(?:json|sh)$/.exec(path) ?? [];
  return network && uid ? { network, uid } : undefined;
}

/** Paths and keys are each other with dots for slashes, and slashes for dots. */
export const swapped = (text: string): string => text.replaceAll(/[./]/g, (mark) => (mark === "." ? "/" : "."));
export const sysctlPath = (key: string): string => `/proc/sys/${swapped(key)}`;

/**
 * What serializes changes of a host: conversations and the boot script hold a `flock` on this directory. Only root can open
 * it: on one that others can open, any local user could hold the lock. It stays until the next boot, because removing it
 * would let a waiting process and a new one lock two different directories.
 */
export const LOCK = "/run/pulumi-overlay";

/** Which process has the lock, and since when. */
export const HOLDER = `${LOCK}/holder`;

/**
 * Makes the directory. False where something else has its name: a symbolic link, or a directory that others can open. Uses no
 * output of `stat` that depends on the language of the host.
 */
export const MAKE_LOCK = `{ mkdir -m 0700 ${LOCK} 2>/dev/null; [ -d ${LOCK} ] && [ ! -L ${LOCK} ] && [ "$(stat -c "%u %a" ${LOCK})" = "0 700" ]; }`;
