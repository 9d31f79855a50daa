/**
 * Whether the service in this container answers, by the settings in its environment. A certificate is not checked: the answer comes from the same
 * container, whatever name the certificate is for.
 */
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";

const { OVERLAY_LISTEN = "127.0.0.1:7447", OVERLAY_TLS_CERT } = process.env;
const port = Number(OVERLAY_LISTEN.split(":").at(-1));
const request = OVERLAY_TLS_CERT === undefined ? httpRequest : httpsRequest;

request({ host: "127.0.0.1", port, path: "/healthz", timeout: 4000, rejectUnauthorized: false })
  .on("response", ({ statusCode }) => process.exit(statusCode === 200 ? 0 : 1))
  .on("timeout", () => process.exit(1))
  .on("error", ({ message }) => {
    console.error(message);
    process.exit(1);
  })
  .end();
