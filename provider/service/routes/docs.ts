import swagger from "@fastify/swagger";
import swaggerUi from "@fastify/swagger-ui";
import { jsonSchemaTransform, jsonSchemaTransformObject } from "fastify-type-provider-zod";
import type { OpenAPIV3_1 } from "openapi-types";
import type { App, RouteScope } from "../app";

/** The page loads and calls nothing but this service. */
const PAGE_POLICY = {
  "default-src": "'self'",
  "img-src": "'self' data:",
  "style-src": "'self' 'unsafe-inline'",
  "object-src": "'none'",
  "frame-ancestors": "'none'",
};

type OpenApi = Partial<OpenAPIV3_1.Document>;

/**
 * Documents all routes that are registered after it: OpenAPI 3.1 at `/openapi.json`, a page at `/docs`. Its own routes need no access token:
 * it is registered before the guard, whose rule for routes the page's plugin does not know.
 */
export async function registerDocs(app: App, version: string): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: "3.1.0",
      info: {
        title: "pulumi-overlay",
        version,
        description: "Addresses, pools and runners at run time. Errors are `application/problem+json`.",
      },
      components: { securitySchemes: { accessToken: { type: "http", scheme: "bearer" } } },
    },
    transform: (document) => {
      const { schema, url } = jsonSchemaTransform(document as Parameters<typeof jsonSchemaTransform>[0]);
      return { schema: { ...schema, security: securityOf(document.route.config?.scope) }, url };
    },
    transformObject: (document) => dropUnusedSchemas(jsonSchemaTransformObject(document) as OpenApi),
  });
  await app.register(async (docs) => {
    docs.addHook("onRoute", (route) => {
      route.config = { ...route.config, scope: "public" };
    });
    await docs.register(swaggerUi, { routePrefix: "/docs", staticCSP: PAGE_POLICY, uiConfig: { validatorUrl: null } });
  });
  app.get("/openapi.json", { config: { scope: "public" }, schema: { hide: true } }, async () => app.swagger());
}

/** The list of a security requirement names the scope of the access token. */
const securityOf = (scope: RouteScope | undefined) => (scope === "public" ? [] : [{ accessToken: [scope!] }]);

/** Schemas with an id are global in zod: those of resources are among them. */
function dropUnusedSchemas({ components, ...document }: OpenApi): OpenApi {
  const schemas = components?.schemas ?? {};
  const used = new Set<string>();
  const visit = (text: string): void => {
    for (const [, name] of text.matchAll(/"#\/components\/schemas\/([^"]+)"/g)) {
      if (used.has(name!)) continue;
      used.add(name!);
      visit(JSON.stringify(schemas[name!]));
    }
  };
  visit(JSON.stringify(document));
  const kept = Object.entries(schemas).filter(([name]) => used.has(name));
  return { ...document, components: { ...components, schemas: Object.fromEntries(kept) } };
}
