import { OverlayError } from "../provider/errors";
import type { App } from "./app";

/** Answers requests for which there is no route, before their bodies are looked at: 405 if the path has other methods, else 404. */
export function answerUnknownRoutes(app: App): void {
  let routes: { pattern: RegExp; methods: string[] }[] | undefined;
  app.addHook("onRequest", async (request, reply) => {
    if (!request.is404) return;
    const path = request.url.split("?")[0]!;
    routes ??= app.allRoutes.map(({ url, method }) => ({ pattern: patternOf(url), methods: [method].flat() }));
    const methods = routes.filter(({ pattern }) => pattern.test(path)).flatMap((route) => route.methods);
    if (methods.length === 0)
      throw new OverlayError("NOT_FOUND", `There is no route ${request.method} ${path}.`, "See /docs.");
    const allowed = [...new Set(methods)].sort().join(", ");
    reply.header("allow", allowed);
    throw new OverlayError("METHOD_NOT_ALLOWED", `${path} has no method ${request.method}.`, `It has ${allowed}.`);
  });
}

/** The paths of a route such as `/ip/info/:runner` or `/docs/*`. */
function patternOf(url: string): RegExp {
  const parts = url.split("/").map((part) => {
    if (part === "*") return ".*";
    return part.startsWith(":") ? "[^/]+" : part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  });
  return new RegExp(`^${parts.join("/")}$`);
}
