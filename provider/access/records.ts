import type { Tenant } from "../pool/types";

/** A row of the store: an access token without its secret. */
export interface AccessToken {
  /** Eight hex digits. */
  id: string;
  /** The history names it for each change that its bearer makes. */
  name: string;
  /** SHA-256 of the secret, in hex. */
  hash: string;
  scopes: string[];
  tenant?: Tenant;
  network?: string;
  /** Name of the pool in the store. */
  pool?: string;
  /** Milliseconds since 1970. */
  createdAt: number;
  createdBy: string;
  expiresAt?: number;
  revokedAt?: number;
}

/** The part of the pool that keeps access tokens. */
export interface AccessRecords {
  accessTokens(): Promise<AccessToken[]>;
  findAccessToken(id: string): Promise<AccessToken | undefined>;
  putAccessToken(token: AccessToken, onlyIfAbsent?: boolean): Promise<void>;
}
