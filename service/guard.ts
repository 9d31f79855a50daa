import type { Admission } from "./admission";
import type { App } from "./app";

/** Checks the caller's access before the body of a request is read. Refuses to start with a route that does not declare its scope. */
export function guardRoutes(app: App, admission: Admission): void {
  app.decorateRequest("caller");
  app.decorateRequest("overlay");
  app.decorateRequest("rowsRead");
  app.addHook("onRoute", ({ method, url, config }) => {
    if (config?.scope === undefined) throw new Error(`Route ${String(method)} ${url} declares no scope.`);
  });
  app.addHook("onRequest", async (request) => {
    const { scope, needsStore } = request.routeOptions.config;
    const { authorization, host, origin, "sec-fetch-site": site } = request.headers;
    const credentials = { authorization, host, origin, fetchSite: site?.toString() };
    admission.refuseOtherSites(credentials);
    if (scope === "public" || request.is404) return;
    if (scope === undefined) throw new Error(`Route ${request.routeOptions.url} declares no scope.`);
    request.caller = await admission.identify(credentials, needsStore === false ? { needsStore } : {});
    request.overlay = admission.admit(request.caller, scope);
    request.rowsRead = admission.chargeTo(request.caller);
  });
}
