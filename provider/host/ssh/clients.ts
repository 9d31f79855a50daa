import { setMaxListeners } from "node:events";
import { isOverlayError, OverlayError } from "../../errors";
import { type Connection, type HostSettings, nameOf, routeOf, sameConnection } from "../connection";
import { Gate, type Link } from "./client";
import { type Credentials, readCredentials } from "./credentials";
import { DialFailed, dial } from "./dial";
import { HostKeys } from "./host-keys";
import { Tries } from "./retry";

interface Shared {
  connection: Connection;
  link: Promise<Link>;
}

/** A connection, and what to try when its credentials are refused. */
export type Ways = [Connection, ...Connection[]];

export interface Way {
  connection: Connection;
  link: Link;
}

/** The SSH connections of this process: one for each route, made when first asked for, and anew when it was lost. */
export class Links {
  readonly #shared = new Map<string, Shared>();
  readonly #up = new Set<Link>();
  readonly #ended = new AbortController();
  readonly #dials: Gate;
  readonly #hostKeys: HostKeys;

  constructor(
    private readonly settings: HostSettings,
    private readonly keepalive: number,
    private readonly connected: (connection: Connection) => void,
    private readonly notify: (text: string) => void,
  ) {
    this.#dials = new Gate(settings.parallelHosts);
    this.#hostKeys = new HostKeys(settings);
    setMaxListeners(0, this.#ended.signal);
  }

  /** The first of these that the host lets in; for a failure other than refused credentials there is no second. */
  async get([first, ...fallbacks]: Ways): Promise<Way> {
    try {
      return { connection: first, link: await this.#share(first) };
    } catch (error) {
      unlessRefused(error);
      for (const connection of distinct(first, fallbacks)) {
        const link = await this.#share(connection).catch(unlessRefused);
        if (link) return { connection, link };
      }
      throw error;
    }
  }

  /** A connection that is nobody else's, had in so many seconds; whoever asked for it ends it. */
  anew(connection: Connection, seconds: number): Promise<Link> {
    const patience = { ...this.settings, operationTimeout: seconds };
    return this.#dialUntilUp({ ...connection, dialErrorLimit: 0 }, patience);
  }

  async end(): Promise<void> {
    await Promise.all([...this.#up].map((link) => link.end()));
    this.#ended.abort();
  }

  async #share(connection: Connection): Promise<Link> {
    const route = routeOf(connection);
    const shared = this.#shared.get(route);
    if (!shared) return this.#start(route, connection);
    const link = await shared.link.catch((error) => {
      // What was refused to another caller may have been its key or its limits: ask again with our own.
      if (sameConnection(shared.connection, connection)) throw error;
    });
    if (link && !link.lost) return this.#sameServer(link, connection);
    if (link) this.#up.delete(link);
    if (this.#shared.get(route) === shared) this.#shared.delete(route);
    return this.#share(connection);
  }

  async #sameServer(link: Link, connection: Connection): Promise<Link> {
    if (!connection.hostKey) return link;
    const refused = (await this.#hostKeys.expect(connection)).refuse(link.hostKey);
    if (refused) throw refused;
    return link;
  }

  #start(route: string, connection: Connection): Promise<Link> {
    const shared = { connection, link: this.#dialUntilUp(connection) };
    this.#shared.set(route, shared);
    shared.link.catch(() => {
      if (this.#shared.get(route) === shared) this.#shared.delete(route);
    });
    return shared.link;
  }

  async #dialUntilUp(connection: Connection, settings = this.settings): Promise<Link> {
    const credentials = await readCredentials(connection);
    const tries = new Tries(connection, settings);
    const silence = tries.announce(this.notify);
    try {
      for (;;) {
        try {
          const link = await this.#dial(connection, credentials, tries);
          this.connected(connection);
          this.#up.add(link);
          return link;
        } catch (error) {
          if (!(error instanceof DialFailed)) throw error;
          await tries.pause(error, this.#ended.signal);
        }
      }
    } finally {
      silence();
    }
  }

  /** The turn is taken for one dial, and given back for the pause: a host that is down must not hold up the others. */
  async #dial(connection: Connection, credentials: Credentials, tries: Tries): Promise<Link> {
    const jump = connection.proxy && (await this.#share(connection.proxy).catch(behind(connection)));
    const expected = await this.#hostKeys.expect(connection);
    const request = { connection, credentials, expected, jump, keepalive: this.keepalive, ended: this.#ended.signal };
    const turn = () => this.#dials.pass(() => dial({ ...request, limit: tries.limit() }));
    return jump ? jump.handshakes.pass(turn) : turn();
  }
}

/** Asking twice with the same key would only bring the host closer to locking us out. */
const distinct = (first: Connection, fallbacks: Connection[]): Connection[] =>
  fallbacks.filter((way, index) => ![first, ...fallbacks.slice(0, index)].some((other) => sameConnection(other, way)));

function unlessRefused(error: unknown): undefined {
  if (!isOverlayError(error, "SSH_AUTH")) throw error;
}

const behind = (connection: Connection) => (error: unknown) => {
  if (!isOverlayError(error)) throw error;
  const what = `${nameOf(connection)} is behind a jump host that fails: ${error.what}`;
  throw new OverlayError(error.code, what, error.fix, error);
};
