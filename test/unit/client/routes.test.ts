import type { RouteOptions } from "fastify";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { OverlayClient } from "../../../client";
import { ROUTES } from "../../../client/routes";
import { Stage } from "../lifecycle/stage";
import { TestService } from "../service/service";

/** The routes of the client beside those of the server: a route without a method of the client fails. */
let service: TestService;
let routes: RouteOptions[];

beforeAll(async () => {
  service = await TestService.on((await Stage.up()).pool.ipam);
  routes = service.app.allRoutes.filter(({ method, schema }) => method !== "HEAD" && schema?.operationId !== undefined);
});
afterAll(() => service.app.close());

const nameOf = ({ method, url }: RouteOptions): string => `${String(method)} ${url}`;

test("every route of the server has a method of the client", () => {
  const known = new Set(Object.values(ROUTES).map(({ method, path }) => `${method} ${path}`));
  expect(routes.length).toBeGreaterThan(20);
  expect([...known].sort()).toEqual(routes.map(nameOf).sort());
  const methods = Object.getOwnPropertyNames(OverlayClient.prototype);
  const missing = Object.keys(ROUTES).filter((name) => !methods.includes(name.replace(/^release.*/, "release")));
  expect(missing).toEqual([]);
});

test("client and server use the same schemas of answers", () => {
  for (const { method, path, answer } of Object.values(ROUTES)) {
    const route = routes.find((each) => nameOf(each) === `${method} ${path}`);
    const sent = (route!.schema!.response as { 200: z.ZodType })[200];
    if ("content" in sent) continue; // text
    const options = sent instanceof z.ZodUnion ? sent.options : [sent];
    expect(options, `${method} ${path}`).toContain(answer);
  }
});
