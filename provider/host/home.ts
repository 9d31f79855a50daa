import { homedir } from "node:os";

/** `~/x` in the user's home, as in OpenSSH's own settings. */
export const expandHome = (path: string): string => path.replace(/^~(?=\/|$)/, homedir());
