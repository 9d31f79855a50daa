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
