import { readFileSync, unwatchFile, watchFile } from "node:fs";
import { createSecureContext, type SecureContextOptions } from "node:tls";
import { OverlayError } from "../provider/errors";

/** The TLS files of the server. */
export interface TlsFiles {
  tlsCert: string;
  tlsKey: string;
  clientCa?: string | undefined;
}

/** Reads all files, and rejects those that do not fit each other. */
export function readTls({ tlsCert, tlsKey, clientCa }: TlsFiles): SecureContextOptions {
  const options = {
    cert: readPem(tlsCert),
    key: readPem(tlsKey),
    ...(clientCa !== undefined && { ca: readPem(clientCa) }),
  };
  try {
    createSecureContext(options);
  } catch (error) {
    throw new OverlayError(
      "SETTING_INVALID",
      `Certificate ${tlsCert} and key ${tlsKey} cannot be used: ${(error as Error).message}.`,
      "Give a certificate and its key, both in PEM form.",
      error,
    );
  }
  return options;
}

function readPem(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    const what = `${file} cannot be read (${(error as NodeJS.ErrnoException).code}).`;
    throw new OverlayError("SETTING_INVALID", what, "Give a file that this user can read.", error);
  }
}

/** Milliseconds. Polling also sees files that are replaced, or reached through links, as in Kubernetes' secrets. */
const INTERVAL = 1000;

/**
 * Calls `apply` with the new content when a file changes. While certificate and key do not fit each other, as between the writing of one and
 * of the other, the old ones stay in use and `refuse` gets the reason. Returns a function that ends it.
 */
export function watchTls(
  files: TlsFiles,
  { apply, refuse }: { apply(options: SecureContextOptions): void; refuse(error: OverlayError): void },
): () => void {
  const paths = [files.tlsCert, files.tlsKey, ...(files.clientCa === undefined ? [] : [files.clientCa])];
  const reload = (): void => {
    try {
      apply(readTls(files));
    } catch (error) {
      refuse(error as OverlayError);
    }
  };
  for (const path of paths) watchFile(path, { interval: INTERVAL, persistent: false }, reload);
  return () => {
    for (const path of paths) unwatchFile(path, reload);
  };
}
