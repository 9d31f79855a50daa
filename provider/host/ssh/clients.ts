import { setMaxListeners } from "node:events";
import { isOverlayError, OverlayError } from "../../errors";
import { type Connection, connectionKey, connectionName, type HostSettings, sameConnection } from "../connection";
import { Semaphore, type SshClient } from "./client";
import { type Credentials, readCredentials } from "./credentials";
import { DialFailed, dial } from "./dial";
import { HostKeys } from "./host-keys";
import { DialRetries } from "./retry";

interface SharedClient {
  connection: Connection;
  client: Promise<SshClient>;
}

/** A connection, and alternatives for refused credentials. */
export type ConnectionChoices = [Connection, ...Connection[]];

export interface ChosenConnection {
  connection: Connection;
  client: SshClient;
}

/** The SSH connections of this process: one for each connection key, opened at the first use, and again when it was lost. */
export class SshClients {
  readonly #shared = new Map<string, SharedClient>();
  readonly #up = new Set<SshClient>();
  readonly #ended = new AbortController();
  readonly #dials: Semaphore;
  readonly #hostKeys: HostKeys;

  constructor(
    private readonly settings: HostSettings,
    private readonly keepalive: number,
    private readonly connected: (connection: Connection) => void,
    private readonly notify: (text: string) => void,
  ) {
    this.#dials = new Semaphore(settings.parallelHosts);
    this.#hostKeys = new HostKeys(settings);
    setMaxListeners(0, this.#ended.signal);
  }

  /** The first of these that the host accepts. Only refused credentials lead to the next one. */
  async get([first, ...fallbacks]: ConnectionChoices): Promise<ChosenConnection> {
    try {
      return { connection: first, client: await this.#share(first) };
    } catch (error) {
      rethrowUnlessRefused(error);
      for (const connection of distinctConnections(first, fallbacks)) {
        const client = await this.#share(connection).catch(rethrowUnlessRefused);
        if (client) return { connection, client };
      }
      throw error;
    }
  }

  /** A new connection that is not shared, within so many seconds; the caller ends it. */
  openNew(connection: Connection, seconds: number): Promise<SshClient> {
    const patience = { ...this.settings, operationTimeout: seconds };
    return this.#dialUntilUp({ ...connection, dialErrorLimit: 0 }, patience);
  }

  async end(): Promise<void> {
    await Promise.all([...this.#up].map((client) => client.end()));
    this.#ended.abort();
  }

  async #share(connection: Connection): Promise<SshClient> {
    const route = connectionKey(connection);
    const shared = this.#shared.get(route);
    if (!shared) return this.#start(route, connection);
    const client = await shared.client.catch((error) => {
      // Another caller may have failed because of its key or its limits: try again with our own.
      if (sameConnection(shared.connection, connection)) throw error;
    });
    if (client && !client.lost) return this.#sameServer(client, connection);
    if (client) this.#up.delete(client);
    if (this.#shared.get(route) === shared) this.#shared.delete(route);
    return this.#share(connection);
  }

  async #sameServer(client: SshClient, connection: Connection): Promise<SshClient> {
    if (!connection.hostKey) return client;
    const refused = (await this.#hostKeys.expect(connection)).refuse(client.hostKey);
    if (refused) throw refused;
    return client;
  }

  #start(route: string, connection: Connection): Promise<SshClient> {
    const shared = { connection, client: this.#dialUntilUp(connection) };
    this.#shared.set(route, shared);
    shared.client.catch(() => {
      if (this.#shared.get(route) === shared) this.#shared.delete(route);
    });
    return shared.client;
  }

  async #dialUntilUp(connection: Connection, settings = this.settings): Promise<SshClient> {
    const credentials = await readCredentials(connection);
    const tries = new DialRetries(connection, settings);
    const silence = tries.notifyWhenSlow(this.notify);
    try {
      for (;;) {
        try {
          const client = await this.#dial(connection, credentials, tries);
          this.connected(connection);
          this.#up.add(client);
          return client;
        } catch (error) {
          if (!(error instanceof DialFailed)) throw error;
          await tries.pause(error, this.#ended.signal);
        }
      }
    } finally {
      silence();
    }
  }

  /** A slot is held for one dial, and free during the pause: a host that is down must not block the others. */
  async #dial(connection: Connection, credentials: Credentials, tries: DialRetries): Promise<SshClient> {
    const jump = connection.proxy && (await this.#share(connection.proxy).catch(explainJumpFailure(connection)));
    const expected = await this.#hostKeys.expect(connection);
    const request = { connection, credentials, expected, jump, keepalive: this.keepalive, ended: this.#ended.signal };
    const turn = () => this.#dials.run(() => dial({ ...request, limit: tries.limit() }));
    return jump ? jump.handshakes.run(turn) : turn();
  }
}

/** Repeated attempts with the same key could make the host block us. */
const distinctConnections = (first: Connection, fallbacks: Connection[]): Connection[] =>
  fallbacks.filter(
    (choice, index) => ![first, ...fallbacks.slice(0, index)].some((other) => sameConnection(other, choice)),
  );

function rethrowUnlessRefused(error: unknown): undefined {
  if (!isOverlayError(error, "SSH_AUTH")) throw error;
}

const explainJumpFailure = (connection: Connection) => (error: unknown) => {
  if (!isOverlayError(error)) throw error;
  const what = `${connectionName(connection)} is behind a jump host that fails: ${error.what}`;
  throw new OverlayError(error.code, what, error.fix, error);
};
