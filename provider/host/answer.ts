import { isOverlayError, OverlayError } from "../errors";
import type { Host } from "./types";

/** Runs `look`. An error about what is on a machine names the machine. */
export function onHost<T>(host: Pick<Host, "name">, look: () => T): T {
  try {
    return look();
  } catch (error) {
    throw isOverlayError(error) ? withHost(host, error) : error;
  }
}

export const withHost = ({ name }: Pick<Host, "name">, error: OverlayError): OverlayError =>
  new OverlayError(error.code, `${name}: ${error.what}`, error.fix, error);
