import { OverlayError } from "../../errors";
import type { Item } from "../model/items";
import { isInRecordDir, RECORD_DIR } from "../model/record";

/** Quotes a text as one word of a shell. */
export const quote = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

const WORD = /^[A-Za-z0-9_.:/@%+=,-]*$/;
/** Rules go to iptables-restore, which splits them at blanks. */
const RULE = /^[A-Za-z0-9 _.:/@%+=,![\]-]*$/;

/** A word of a shell or of `ip -batch` without quotes; refused if it needs quotes. */
export function requireWord(text: string): string {
  if (WORD.test(text)) return text;
  throw unsafeTextError(text);
}

/**
 * A command with text of a host in it, for messages. Users paste it into a shell: each word stays one there. Words with blanks
 * are in double quotes, as iptables-save prints them.
 */
export const quoteCommand = (command: string): string =>
  (command.match(/"(?:\\.|[^"\\])*"|\S+/g) ?? [])
    .map((word) => (/^".*"$/s.test(word) && word.length > 1 ? word.slice(1, -1).replace(/\\(.)/gs, "$1") : word))
    .map((word) => (word !== "" && (word === "!" || WORD.test(word)) ? word : quote(word)))
    .join(" ");

/** Refuses an item with a text that a shell could split or expand. `quoted`: fields that are rendered with `quote`. */
export function requireSafeItem(item: Item, quoted: string[], others: string[]): void {
  for (const text of others) requireWord(text);
  for (const [key, value] of Object.entries(item)) {
    if (quoted.includes(key)) continue;
    for (const text of stringsIn(value)) if (!(key === "rule" ? RULE : WORD).test(text)) throw unsafeTextError(text);
  }
}

const stringsIn = (value: unknown): string[] =>
  typeof value === "string"
    ? [value]
    : typeof value === "object" && value !== null
      ? Object.values(value).flatMap(stringsIn)
      : [];

const unsafeTextError = (text: string): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `${JSON.stringify(text.slice(0, 200))} cannot be a part of a command.`,
    "Names and addresses must have no blanks, quotes or signs of a shell. Find out which host or input has it.",
  );

/** A file that a host is to have. */
export interface FileToWrite {
  path: string;
  /** Its text as one shell word: quoted, or an expansion in double quotes. */
  word: string;
}

export const textFile = (path: string, content: string): FileToWrite => ({ path, word: quote(content) });

const folderOf = (path: string): string => path.slice(0, path.lastIndexOf("/"));

/**
 * The command that writes these files on a host, each atomically: to a temporary file in the same directory,
 * synced to disk, then renamed. It fails, and leaves no temporary file, if one of them cannot be written. All are
 * synced at once, because starting `sync` is the most expensive part. Only root can change them, and the folders of ours that they are in. An error of syncing a directory is ignored.
 */
export function renderWriteFiles(files: FileToWrite[]): string {
  const folders = [...new Set(files.map(({ path }) => folderOf(path)))].map(quote);
  const temporary = files.map(({ path }) => quote(`${path}.tmp`));
  const own = [
    ...new Set(
      files
        .map(({ path }) => path)
        .filter(isInRecordDir)
        .map(folderOf),
    ),
  ].map(quote);
  const commands = [
    "umask 022",
    ...folders.map((folder) => `{ [ -d ${folder} ] || mkdir -p ${folder}; }`),
    ...(own.length > 0
      ? [`chown 0:0 ${RECORD_DIR} ${own.join(" ")}`, `chmod go-w ${RECORD_DIR} ${own.join(" ")}`]
      : []),
    ...files.map(({ path, word }) => `printf %s ${word} >${quote(`${path}.tmp`)}`),
    `sync ${temporary.join(" ")}`,
    ...files.map(({ path }) => `mv ${quote(`${path}.tmp`)} ${quote(path)}`),
    `{ sync ${folders.join(" ")} 2>/dev/null || :; }`,
  ];
  const names = files.map(({ path }) => path).join(" ");
  return `{ ${commands.join(" && ")} || { rm -f ${temporary.join(" ")}; echo ${quote(`cannot write ${names}`)} >&2; false; }; }`;
}

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

/** A script on a host prints a warning for the user as a line that starts with this. */
export const WARNING_PREFIX = "@@ warning ";
