import swagger from "@fastify/swagger";
import swaggerUi from "@fastify/swagger-ui";
import { jsonSchemaTransform, jsonSchemaTransformObject } from "fastify-type-provider-zod";
import type { App } from "../app";

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
    transform: jsonSchemaTransform,
    transformObject: jsonSchemaTransformObject,
  });
  await app.register(async (docs) => {
    docs.addHook("onRoute", (route) => {
      route.config = { ...route.config, scope: "public" };
    });
    await docs.register(swaggerUi, { routePrefix: "/docs" });
  });
  app.get("/openapi.json", { config: { scope: "public" }, schema: { hide: true } }, async () => app.swagger());
}
