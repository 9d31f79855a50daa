import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { Server as HttpsServer } from "node:https";
import type { Socket } from "node:net";

/** The part of the limit that idle connections may use; the rest is for new ones. */
const IDLE_SHARE = 0.9;

/**
 * Limits the connections of a server. When there are nearly too many, those without a request under way are closed, the longest idle one first. So a
 * client that opens many does not keep out others.
 */
export function limitConnections(server: Server | HttpsServer, most: number): void {
  /** The longest idle connection is the first. */
  const idle = new Set<Socket>();
  let open = 0;
  server.maxConnections = most;
  server.on("connection", (socket: Socket) => {
    open++;
    socket.once("close", () => open--);
    const [longestIdle] = idle;
    if (open > most * IDLE_SHARE) longestIdle?.destroy();
  });
  // With TLS, a request has the socket that decrypts it. Handshakes have a timeout of their own.
  server.on("setSecureContext" in server ? "secureConnection" : "connection", (socket: Socket) => {
    idle.add(socket);
    socket.once("close", () => idle.delete(socket));
  });
  server.on("request", ({ socket }: IncomingMessage, response: ServerResponse) => {
    idle.delete(socket);
    response.once("close", () => {
      if (!socket.destroyed) idle.add(socket);
    });
  });
}
