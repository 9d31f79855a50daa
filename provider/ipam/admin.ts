import { type Finding, fsck } from "./decide/fsck";
import type { State } from "./decide/state";
import { ANY, COMPLETE } from "./identity";
import type { Session } from "./session";
import type { DocumentKind, Head } from "./store/store";
import type { Tenant } from "./types";

export const ACCESS_SCOPES = ["read", "reserve", "admin", "preview", "deploy"] as const;

/** A token that permits calls to the service. Its secret is not stored, only the hash of it. */
export interface AccessToken {
  id: string;
  name: string;
  /** SHA-256, in hexadecimal. */
  hash: string;
  scopes: (typeof ACCESS_SCOPES)[number][];
  /** The only tenant, network and pool that it is for. */
  tenant?: Tenant;
  network?: string;
  pool?: string;
  createdAt: number;
  createdBy?: string;
  expiresAt?: number;
  revokedAt?: number;
}

/** A receiver of events by HTTP. */
export interface Webhook {
  id: string;
  url: string;
  /** Signs what is sent. */
  secret: string;
  /** The only events that it gets. */
  tenant?: Tenant;
  network?: string;
  pool?: string;
  createdAt: number;
  createdBy?: string;
}

/** How far a webhook has come. Every process may go on with it, one at a time. */
export interface Delivery {
  /** The newest event that its receiver has accepted, or that is not for it. */
  delivered: number;
  /** The process that sends, and until when no other one may. */
  holder?: string;
  heldUntil?: number;
  /** Failures in a row: how many, the first and the latest reason, and when it is tried again. */
  failures?: number;
  failedSince?: number;
  error?: string;
  retryAt?: number;
  /** It failed for too long, and is not tried again before an operator resumes it. */
  suspended?: boolean;
}

/** The lock of what belongs to no pool. */
const STORE = "store";

/** What the operator of a store does with it, on the store itself: a service does not do it for others. */
export class StoreAdmin {
  readonly #session: Session;
  readonly webhooks: Webhooks;

  constructor(session: Session) {
    this.#session = session;
    this.webhooks = new Webhooks(session);
  }

  findSecret(name: string): Promise<string | undefined> {
    return readDocument(this.#session, "secret", name);
  }

  replaceSecret(name: string, replace: (kept: string | undefined) => string): Promise<string> {
    return changeDocument(this.#session, "secret", name, replace);
  }

  async accessTokens(): Promise<AccessToken[]> {
    return (await readDocuments(this.#session, "accessToken")).map(({ value }) => JSON.parse(value));
  }

  async findAccessToken(id: string): Promise<AccessToken | undefined> {
    const text = await readDocument(this.#session, "accessToken", id);
    return text === undefined ? undefined : JSON.parse(text);
  }

  /** Writes the token that `replace` returns for the present ones, in one transaction. `replace` may run several times, and may throw. */
  async updateAccessTokens(replace: (tokens: AccessToken[]) => AccessToken): Promise<AccessToken> {
    const work = (state: State) => {
      const token = replace(state.documentsOf("accessToken").map(({ value }) => JSON.parse(value)));
      state.documents.put({ kind: "accessToken", key: token.id, value: JSON.stringify(token) });
      return token;
    };
    return (await this.#session.write([STORE], [{ of: "documents", kind: "accessToken" }], work))[0];
  }

  /** After a recovery: stacks that were deployed with the stores `from`, and have seen `version`, accept this one. */
  async adoptIdentity(from: string[], version: number, { complete = false } = {}): Promise<void> {
    this.#session.forgetIdentity();
    await this.#session.write([STORE], [], (state, head) => {
      const id = head.version === 0 && from[0] !== undefined ? from[0] : head.id;
      for (const each of from) if (each !== id) state.documents.put({ kind: "recovered", key: each, value: "" });
      const tag = complete ? COMPLETE : ANY;
      const last = Math.max(version, head.version);
      state.head = { head: { id, version: last, epoch: tag, epochSince: 0 }, resetEpochs: { first: 0, tag } };
    });
    this.#session.forgetIdentity();
  }

  async fsck({ repair = false }: { repair?: boolean } = {}): Promise<Finding[]> {
    const check = (state: State) => fsck(state, repair);
    return repair ? (await this.#session.write([STORE], [], check))[0] : this.#session.read([], check);
  }
}

/** Webhooks are secrets of the store: each has the key that signs what is sent. */
const PREFIX = "webhook/";

/** Each of them is a reader of all events. */
export const MOST_WEBHOOKS = 100;

/** The webhooks of a store. */
export class Webhooks {
  readonly #session: Session;

  constructor(session: Session) {
    this.#session = session;
  }

  async list(): Promise<Webhook[]> {
    const secrets = await readDocuments(this.#session, "secret");
    return secrets.flatMap(({ key, value }) => (key.startsWith(PREFIX) ? [JSON.parse(value)] : []));
  }

  /** It gets the events from now on. false: there are `MOST_WEBHOOKS` already. */
  async add(webhook: Webhook): Promise<boolean> {
    const work = (state: State, { lastEvent }: Head): boolean => {
      if (state.documentsOf("secret").filter(({ key }) => key.startsWith(PREFIX)).length >= MOST_WEBHOOKS) return false;
      const { id: key } = webhook;
      state.documents.put({ kind: "delivery", key, value: JSON.stringify({ delivered: lastEvent }) });
      state.documents.put({ kind: "secret", key: PREFIX + key, value: JSON.stringify(webhook) });
      return true;
    };
    return (await this.#session.write([STORE], [{ of: "documents", kind: "secret" }], work))[0];
  }

  /** false: there is none. */
  async remove(id: string): Promise<boolean> {
    let found = false;
    await changeDocument(this.#session, "secret", PREFIX + id, (kept): undefined => {
      found = kept !== undefined;
    });
    await changeDocument(this.#session, "delivery", id, (): undefined => {});
    return found;
  }

  /** By the ids of the webhooks. */
  async deliveries(): Promise<Map<string, Delivery>> {
    return new Map((await readDocuments(this.#session, "delivery")).map(({ key, value }) => [key, JSON.parse(value)]));
  }

  /**
   * Compares and changes a delivery in one transaction. `change` gets the present state and the time of the store; it may run several times.
   * Where it returns undefined, nothing changes. Returns the state after it.
   */
  async updateDelivery(
    id: string,
    change: (delivery: Delivery, now: number) => Delivery | undefined,
  ): Promise<Delivery | undefined> {
    const text = await changeDocument(this.#session, "delivery", id, (kept, now) => {
      const changed = kept === undefined ? undefined : change(JSON.parse(kept), now);
      return changed ? JSON.stringify(changed) : kept;
    });
    return text === undefined ? undefined : JSON.parse(text);
  }
}

const readDocuments = (session: Session, kind: DocumentKind): Promise<{ key: string; value: string }[]> =>
  session.find([{ of: "documents", kind }], (state) => state.documentsOf(kind));

const readDocument = (session: Session, kind: DocumentKind, key: string): Promise<string | undefined> =>
  session.find([{ of: "documents", kind }], (state) => state.document(kind, key));

/** Replaces a text; undefined removes it. Returns what is there afterwards. */
async function changeDocument<T extends string | undefined>(
  session: Session,
  kind: DocumentKind,
  key: string,
  replace: (kept: string | undefined, now: number, head: Head) => T,
): Promise<T> {
  const work = (state: State, head: Head): T => {
    const value = replace(state.document(kind, key), state.now, head);
    if (value === undefined) state.documents.delete(`${kind}/${key}`);
    else if (value !== state.document(kind, key)) state.documents.put({ kind, key, value });
    return value;
  };
  return (await session.write([STORE], [{ of: "documents", kind }], work))[0];
}
