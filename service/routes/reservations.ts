import { leaseAnswer, leasePage, releaseAnswer, reserveAnswer, validationAnswer } from "../../provider/answers";
import {
  describeLease,
  findLeasePage,
  free,
  type Reservation,
  release,
  reserveMany,
  useAddress,
  validateToken,
} from "../../provider/reservations";
import type { RouteGroup } from "../app";
import {
  freeFields,
  idempotencyHeaders,
  releaseFields,
  reserveFields,
  searchFields,
  useFields,
  validateFields,
} from "../inputs";
import { mergeInputs, pageSize, requireInput } from "../requests";

function describeReservation({ lease, token, gateways: [gateway, gateway6] }: Reservation) {
  return { ...describeLease(lease), gateway, gateway6, token, warnings: lease.warnings };
}

/** Reservations of addresses: the routes that KohakuRiver's clients know. */
export const reservationRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "POST",
    url: "/ip/reserve",
    config: { scope: "reserve", failures: [404, 409], example: { runner: "node1", ttl: 300 } },
    schema: {
      operationId: "reserveAddress",
      summary: "Reserve an address on a runner, on any runner of a network, or in a pool.",
      querystring: reserveFields,
      body: reserveFields.nullish(),
      headers: idempotencyHeaders,
      response: { 200: reserveAnswer },
    },
    handler: async ({ overlay, query, body, headers: { "idempotency-key": key } }) => {
      const { container, ...input } = mergeInputs({ query, body });
      const reservations = (await reserveMany(overlay, { ...input, by: container, key })).map(describeReservation);
      return input.count === undefined ? reservations[0]! : { reservations };
    },
  });

  app.route({
    method: "POST",
    url: "/ip/validate",
    config: { scope: "reserve", needsStore: false, failures: [409, 410], example: { token: "ipr1.KEY.PAYLOAD.MAC" } }, // with `offline`
    schema: {
      operationId: "validateToken",
      summary: "Check the token of a reservation that is not used yet.",
      querystring: validateFields,
      body: validateFields.nullish(),
      response: { 200: validationAnswer },
    },
    handler: async ({ overlay, query, body }) => {
      const { token, ...input } = mergeInputs({ query, body });
      return {
        valid: true as const,
        ...(await validateToken(overlay, { ...input, token: requireInput(token, "token") })),
      };
    },
  });

  app.route({
    method: "POST",
    url: "/ip/use",
    config: { scope: "reserve", failures: [404, 409, 410], example: { ip: "10.128.64.77", container: "cache" } },
    schema: {
      operationId: "useAddress",
      summary: "Mark an address as used by a container, by its token or by the address. It does not expire then.",
      querystring: useFields,
      body: useFields.nullish(),
      response: { 200: leaseAnswer },
    },
    handler: async ({ overlay, query, body }) => {
      const { container, ...input } = mergeInputs({ query, body });
      return describeLease(await useAddress(overlay, { ...input, by: requireInput(container, "container") }));
    },
  });

  app.route({
    method: "POST",
    url: "/ip/release",
    config: { scope: "reserve", failures: [404, 409], example: { container: "cache" } },
    schema: {
      operationId: "releaseAddresses",
      summary: "Release an unused reservation by its token, or all addresses of a container.",
      querystring: releaseFields,
      body: releaseFields.nullish(),
      response: { 200: releaseAnswer },
    },
    handler: async ({ overlay, query, body }) => {
      const { container, ...input } = mergeInputs({ query, body });
      const { leases, kept } = await release(overlay, { ...input, by: container });
      return { released: leases.map(describeLease), kept: kept.map(describeLease) };
    },
  });

  app.route({
    method: "POST",
    url: "/ip/free",
    config: { scope: "admin", failures: [404, 409], example: { ip: "10.128.64.10" } },
    schema: {
      operationId: "freeAddress",
      summary: "Release an address of any owner. If a stack holds it, `force` is required.",
      querystring: freeFields,
      body: freeFields.nullish(),
      response: { 200: leaseAnswer },
    },
    handler: async ({ overlay, query, body }) => describeLease(await free(overlay, mergeInputs({ query, body }))),
  });

  app.route({
    method: "GET",
    url: "/ip/reservations",
    config: { scope: "read", failures: [404] },
    schema: {
      operationId: "listReservations",
      summary: "List the addresses that are held.",
      querystring: searchFields,
      response: { 200: leasePage },
    },
    handler: async ({ overlay, query }) => {
      const { limit, cursor, container, label, ...search } = query;
      const { leases, next } = await findLeasePage(overlay, {
        ...search,
        by: container,
        labels: label,
        after: cursor,
        limit: pageSize(limit, limits),
      });
      return { reservations: leases.map(describeLease), next };
    },
  });
};
