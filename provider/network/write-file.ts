import { quote } from "./quote";

/** A file that a host is to have. */
export interface HostFile {
  path: string;
  /** Its text as one shell word: quoted, or an expansion in double quotes. */
  word: string;
}

export const textFile = (path: string, content: string): HostFile => ({ path, word: quote(content) });

/**
 * Renders the command that writes these files on a host, each whole or not at all: to a temporary file in the same directory,
 * synced to disk, then renamed. The command is false, and no temporary file stays, when one of them cannot be written. All are
 * synced at once: starting `sync` costs more than what it does. A file system whose directories cannot be synced still has
 * the files.
 */
export function renderWrite(files: HostFile[]): string {
  const folders = [...new Set(files.map(({ path }) => path.slice(0, path.lastIndexOf("/"))))].map(quote);
  const temporary = files.map(({ path }) => quote(`${path}.tmp`));
  const commands = [
    ...folders.map((folder) => `{ [ -d ${folder} ] || mkdir -p ${folder}; }`),
    ...files.map(({ path, word }) => `printf %s ${word} >${quote(`${path}.tmp`)}`),
    `sync ${temporary.join(" ")}`,
    ...files.map(({ path }) => `mv ${quote(`${path}.tmp`)} ${quote(path)}`),
    `{ sync ${folders.join(" ")} 2>/dev/null || :; }`,
  ];
  const names = files.map(({ path }) => path).join(" ");
  return `{ ${commands.join(" && ")} || { rm -f ${temporary.join(" ")}; echo ${quote(`cannot write ${names}`)} >&2; false; }; }`;
}
