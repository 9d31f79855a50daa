import { createHash, randomBytes, timingSafeEqual } from "node:crypto";

/**
 * An access token as its bearer has it: `ovl_ID_SECRET`. The prefix lets secret scanners find it, the id names its row. The store has
 * only the hash of the secret: 256 random bits need no slow hash.
 */
const FORM = /^ovl_([0-9a-f]{8})_([\w-]{43})$/;

export interface TokenText {
  id: string;
  secret: string;
}

export const newTokenText = (): TokenText => ({
  id: randomBytes(4).toString("hex"),
  secret: randomBytes(32).toString("base64url"),
});

export const formatToken = ({ id, secret }: TokenText): string => `ovl_${id}_${secret}`;

export function parseToken(text: string): TokenText | undefined {
  const [, id, secret] = FORM.exec(text) ?? [];
  return id === undefined ? undefined : { id, secret: secret! };
}

export const hashSecret = (secret: string): string => createHash("sha256").update(secret).digest("hex");

/** In constant time. */
export function hasSecret({ hash }: { hash: string }, secret: string): boolean {
  const [kept, given] = [Buffer.from(hash, "hex"), Buffer.from(hashSecret(secret), "hex")];
  return kept.length === given.length && timingSafeEqual(kept, given);
}
