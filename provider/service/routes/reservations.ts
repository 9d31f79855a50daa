import { OverlayError } from "../../errors";
import {
  describeLease,
  findLeasePage,
  free,
  releaseByContainer,
  releaseByToken,
  reserve,
  useByAddress,
  useByToken,
  validateToken,
} from "../../reservations";
import { answers, leaseAnswer, leasePage, releaseAnswer, reservationAnswer, validationAnswer } from "../answers";
import type { RouteGroup } from "../app";
import { freeFields, releaseFields, reserveFields, searchFields, useFields, validateFields } from "../inputs";
import { mergeInputs, requireInput } from "../requests";
import { resolveRunner } from "../runner-choice";

/** Reservations of addresses: the routes that KohakuRiver's clients know. */
export const reservationRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "POST",
    url: "/ip/reserve",
    config: { scope: "reserve" },
    schema: {
      operationId: "reserveAddress",
      summary: "Reserve an address on a runner or in a pool.",
      querystring: reserveFields,
      body: reserveFields.nullish(),
      response: answers(reservationAnswer),
    },
    handler: async ({ overlay, query, body }) => {
      const { container, ...input } = await resolveRunner(overlay.pool, mergeInputs({ query, body }));
      const { lease, token, gateways } = await reserve(overlay, { ...input, by: container });
      const [gateway, gateway6] = gateways;
      return { ...describeLease(lease), gateway, gateway6, token, warnings: lease.warnings };
    },
  });

  app.route({
    method: "POST",
    url: "/ip/validate",
    config: { scope: "reserve" },
    schema: {
      operationId: "validateToken",
      summary: "Check the token of a reservation that is not used yet.",
      querystring: validateFields,
      body: validateFields.nullish(),
      response: answers(validationAnswer),
    },
    handler: async ({ overlay, query, body }) => {
      const { token, runner, offline } = mergeInputs({ query, body });
      const found = await validateToken(overlay, { token: requireInput(token, "token"), runner, offline });
      return { valid: true as const, ...found };
    },
  });

  app.route({
    method: "POST",
    url: "/ip/use",
    config: { scope: "reserve" },
    schema: {
      operationId: "useAddress",
      summary: "Mark an address as used by a container, by its token or by the address. It does not expire then.",
      querystring: useFields,
      body: useFields.nullish(),
      response: answers(leaseAnswer),
    },
    handler: async ({ overlay, query, body }) => {
      const { token, container, ...input } = mergeInputs({ query, body });
      const by = requireInput(container, "container");
      if (token !== undefined)
        return describeLease(await useByToken(overlay, { token, runner: input.runner, by, vm: input.vm }));
      return describeLease(await useByAddress(overlay, { ...(await resolveRunner(overlay.pool, input)), by }));
    },
  });

  app.route({
    method: "POST",
    url: "/ip/release",
    config: { scope: "reserve" },
    schema: {
      operationId: "releaseAddresses",
      summary: "Release an unused reservation by its token, or all addresses of a container.",
      querystring: releaseFields,
      body: releaseFields.nullish(),
      response: answers(releaseAnswer),
    },
    handler: async ({ overlay, query, body }) => {
      const { token, container, ...where } = mergeInputs({ query, body });
      if ((token === undefined) === (container === undefined))
        throw new OverlayError("INPUT_INVALID", "Neither token nor container is given, or both.", "Give one of them.");
      const { leases, kept } =
        token === undefined
          ? await releaseByContainer(overlay, container!, await resolveRunner(overlay.pool, where))
          : await releaseByToken(overlay, token);
      return { released: leases.map(describeLease), kept: kept.map(describeLease) };
    },
  });

  app.route({
    method: "POST",
    url: "/ip/free",
    config: { scope: "admin" },
    schema: {
      operationId: "freeAddress",
      summary: "Release an address of any holder.",
      querystring: freeFields,
      body: freeFields.nullish(),
      response: answers(leaseAnswer),
    },
    handler: async ({ overlay, query, body }) =>
      describeLease(await free(overlay, await resolveRunner(overlay.pool, mergeInputs({ query, body })))),
  });

  app.route({
    method: "GET",
    url: "/ip/reservations",
    config: { scope: "read" },
    schema: {
      operationId: "listReservations",
      summary: "List the addresses that are held.",
      querystring: searchFields,
      response: answers(leasePage),
    },
    handler: async ({ overlay, query }) => {
      const { limit, cursor, container, label, ...search } = await resolveRunner(overlay.pool, query);
      const { leases, next } = await findLeasePage(overlay, {
        ...search,
        by: container,
        labels: label,
        after: cursor,
        limit: Math.min(limit ?? limits.pageLimit, limits.pageLimit),
      });
      return { reservations: leases.map(describeLease), next };
    },
  });
};
