import { createHmac } from "node:crypto";

/** Proves to a receiver that a delivery is from the holder of its secret, and when it was sent. */
export const SIGNATURE_HEADER = "overlay-signature";
/** The id of the newest event of a delivery. */
export const EVENT_ID_HEADER = "overlay-event-id";

/** `time`: seconds since 1970. */
export function signatureOf(secret: string, time: number, body: string): string {
  const digest = createHmac("sha256", secret).update(`${time}.${body}`).digest("hex");
  return `t=${time},v1=${digest}`;
}
