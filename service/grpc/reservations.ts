import { z } from "zod";
import {
  describeLease,
  free,
  freeInput,
  release,
  releaseInput,
  reserveInput,
  reserveMany,
  useAddress,
  useInput,
  validateInput,
  validateToken,
} from "../../provider/reservations";
import { describeLeases, enumName, placementField, toLeaseMessage } from "./messages";
import { stream, unary } from "./methods";
import { watch, watchRequest } from "./watch";

/** The service `Reservations`: addresses that are reserved, and then used or released. */

const reservation = reserveInput.shape;
const where = { runner: reservation.runner, network: reservation.network, pool: reservation.pool };
const address = { ip: reservation.ip, port: reservation.port };

export const reservationMethods = {
  Reserve: unary({
    scope: "reserve",
    request: z.object({
      ...where,
      ...address,
      placement: placementField,
      count: reservation.count,
      ttl_seconds: reservation.ttl,
      vm: reservation.vm,
      container: reservation.by,
      owner: reservation.owner,
      idempotency_key: reservation.key,
    }),
    run: async ({ overlay }, { container, idempotency_key: key, ttl_seconds: ttl, ...input }) => {
      const anyRunner = input.network !== undefined && input.runner === undefined && input.pool === undefined;
      const reservations = await reserveMany(overlay, { ...input, anyRunner, ttl, key, by: container });
      return {
        reservations: reservations.map(({ lease, token, gateways }) => ({
          lease: toLeaseMessage(describeLease(lease)),
          token,
          gateways,
          warnings: lease.warnings,
        })),
      };
    },
  }),

  Validate: unary({
    scope: "reserve",
    needsStore: false, // with `offline`
    request: validateInput,
    run: async ({ overlay }, input) => {
      const { checked, ...lease } = await validateToken(overlay, input);
      return { lease: toLeaseMessage(lease), checked: enumName("TOKEN_CHECK", checked) };
    },
  }),

  Use: unary({
    scope: "reserve",
    request: z.object({
      ...where,
      ...address,
      token: releaseInput.shape.token,
      container: useInput.shape.by,
      vm: reservation.vm,
    }),
    run: async ({ overlay }, { container: by, ...input }) =>
      toLeaseMessage(describeLease(await useAddress(overlay, { ...input, by }))),
  }),

  Release: unary({
    scope: "reserve",
    request: z.object({ ...where, token: releaseInput.shape.token, container: releaseInput.shape.by }),
    run: async ({ overlay }, { container, ...input }) => {
      const { leases, kept } = await release(overlay, { ...input, by: container });
      return { released: describeLeases(leases), kept: describeLeases(kept) };
    },
  }),

  Free: unary({
    scope: "admin",
    request: freeInput,
    run: async ({ overlay }, input) => toLeaseMessage(describeLease(await free(overlay, input))),
  }),

  Watch: stream({ scope: "read", request: watchRequest, stream: watch }),
};
