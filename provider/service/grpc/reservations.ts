import { z } from "zod";
import { OverlayError } from "../../errors";
import {
  describeLease,
  free,
  freeInput,
  releaseByContainer,
  releaseByToken,
  releaseInput,
  reserveInput,
  reserveMany,
  useByAddress,
  useByAddressInput,
  useByToken,
  validateInput,
  validateToken,
} from "../../reservations";
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
      container: useByAddressInput.shape.by,
      vm: reservation.vm,
    }),
    run: async ({ overlay }, { token, container: by, ...input }) => {
      const { runner, vm } = input;
      const lease =
        token === undefined
          ? await useByAddress(overlay, { ...input, by })
          : await useByToken(overlay, { token, runner, by, vm });
      return toLeaseMessage(describeLease(lease));
    },
  }),

  Release: unary({
    scope: "reserve",
    request: z.object({ ...where, token: releaseInput.shape.token, container: releaseInput.shape.by }),
    run: async ({ overlay }, { token, container, ...places }) => {
      if ((token === undefined) === (container === undefined))
        throw new OverlayError("INPUT_INVALID", "Neither token nor container is given, or both.", "Give one of them.");
      const { leases, kept } =
        token === undefined
          ? await releaseByContainer(overlay, container!, places)
          : await releaseByToken(overlay, token);
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
