import swagger, { type FastifyDynamicSwaggerOptions } from "@fastify/swagger";
import swaggerUi from "@fastify/swagger-ui";
import type { FastifySchema } from "fastify";
import { jsonSchemaTransform, jsonSchemaTransformObject } from "fastify-type-provider-zod";
import type { OpenAPIV3_1 } from "openapi-types";
import { z } from "zod";
import { describeAnswers } from "../answers";
import type { App, RouteScope } from "../app";
import { TAGS } from "./index";

const DESCRIPTION = `Addresses, pools and runners at run time.

Errors are \`application/problem+json\` (RFC 9457). Not listed with each operation: a path that does not exist is 404, a method that a path does not have
is 405 and names the others in \`Allow\`, and a request whose headers are malformed or arrive too slowly is 400 or 408.

To try operations out, paste an access token under *Authorize*: \`overlayctl access create NAME --scope admin\` prints one. The examples work as they stand,
in their order, where the service runs with \`--demo\`; \`ipr1.KEY.PAYLOAD.MAC\` and the id of a webhook are to be replaced by those that an earlier answer had,
and the stream of events is shown by curl, not by this page. Each operation names the scope that its access token needs; \`admin\` includes all others. The protocol of stacks that use the service as their store
(\`/api/pool/v1\`) is not described here: it is internal, and its only client is this package.`;

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
        description: DESCRIPTION,
      },
      tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
      components: { securitySchemes: { accessToken: { type: "http", scheme: "bearer" } } },
    },
    transform: describeRoute,
    transformObject: (document) => dropUnusedSchemas(jsonSchemaTransformObject(document) as OpenApi),
  });
  await app.register(async (docs) => {
    docs.addHook("onRoute", (route) => {
      route.config = { ...route.config, scope: "public" };
    });
    // The bar at the top is about Fastify.
    const css = [{ filename: "page.css", content: ".swagger-ui .topbar { display: none }" }];
    const theme = { title: "pulumi-overlay", css };
    await docs.register(swaggerUi, {
      routePrefix: "/docs",
      staticCSP: PAGE_POLICY,
      uiConfig: { validatorUrl: null },
      theme,
    });
  });
  app.get("/openapi.json", { config: { scope: "public" }, schema: { hide: true } }, async () => app.swagger());
}

type Transform = NonNullable<FastifyDynamicSwaggerOptions["transform"]>;

/** Adds what follows from a route: its failures, the scope of the access token, and its example. */
const describeRoute: Transform = (document) => {
  const { schema, route } = document;
  if (!schema || schema.hide) return { schema: { hide: true }, url: document.url };
  const { scope, example } = route.config!;
  const access = describeAccess(scope!);
  const described = {
    ...oneForm(schema, access.description),
    security: access.security,
    response: describeAnswers(route),
  };
  const { schema: shown, url } = jsonSchemaTransform({ ...document, schema: described } as TransformInput);
  return { schema: example ? withExample(shown as JsonSchemas, example) : shown, url };
};

interface JsonSchemas {
  body?: object;
  params?: { properties: Record<string, object> };
}

/** In JSON schema, and not in zod, which drops the examples of values that it transforms. */
function withExample(schema: JsonSchemas, example: Record<string, unknown>): JsonSchemas {
  if (schema.body) return { ...schema, body: { ...schema.body, examples: [example] } };
  const params = structuredClone(schema.params!);
  for (const [name, value] of Object.entries(example))
    params.properties[name] = { ...params.properties[name], examples: [value] };
  return { ...schema, params };
}

type TransformInput = Parameters<typeof jsonSchemaTransform>[0];

/** Where the query may have the inputs instead of the body, only the body is described: a request must not have an input in both. */
function oneForm(schema: FastifySchema, access: string): FastifySchema & { description: string } {
  const { querystring, body, ...rest } = schema;
  if (!(body instanceof z.ZodOptional)) return { ...schema, description: access };
  const object = (body.unwrap() as z.ZodNullable).unwrap();
  return { ...rest, body: object, description: `${access} The inputs can be in the query instead of the body.` };
}

/** The list of a security requirement names the scope, too. */
const describeAccess = (scope: RouteScope) =>
  scope === "public"
    ? { description: "Needs no access token.", security: [] }
    : { description: `Needs an access token with the scope \`${scope}\`.`, security: [{ accessToken: [scope] }] };

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
