import type { Socket } from "node:net";

/** The part of the limit that connections without a valid call may use; the rest is for new ones. */
const STRANGERS_SHARE = 0.9;

/**
 * The open connections of a server. When there are nearly too many, those are closed on which no call had a valid access token, the oldest one
 * first: health and reflection need no token, so a client could keep any number of them open.
 */
export class Connections {
  readonly #open = new Set<Socket>();
  /** Without a valid call yet, by address and port of the client. The oldest is the first. */
  readonly #strangers = new Map<string, Socket>();

  constructor(readonly most: number) {}

  add(socket: Socket): void {
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    const [oldest] = this.#strangers.values();
    this.#open.add(socket);
    this.#strangers.set(peer, socket);
    socket.on("error", () => {}); // it is closed then
    socket.once("close", () => {
      this.#open.delete(socket);
      if (this.#strangers.get(peer) === socket) this.#strangers.delete(peer);
    });
    if (this.#open.size > this.most * STRANGERS_SHARE) oldest?.destroy();
  }

  /** A call of this peer had a valid access token. */
  admit(peer: string): void {
    this.#strangers.delete(peer);
  }

  destroyAll(): void {
    for (const socket of this.#open) socket.destroy();
  }
}
