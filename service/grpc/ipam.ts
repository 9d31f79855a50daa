import { z } from "zod";
import { OverlayError } from "../../provider/errors";
import {
  allocate,
  allocateInput,
  createPool,
  createPoolInput,
  deallocate,
  deletePool,
  deletePoolInput,
  describeLease,
  findAllocations,
  poolPageInput,
  poolUsagePage,
  showPool,
} from "../../provider/reservations";
import { allocationPolicyField, describeLeases, poolTypeField, toLeaseMessage, toPoolMessage } from "./messages";
import { unary } from "./methods";

/** The service `Ipam`: pools, and addresses of services. */

const pool = createPoolInput.shape;
const quota = pool.quota.unwrap().shape;
const page = poolPageInput.shape;

const toQuota = ({ max_ips: maxIps, max_reservations: maxReservations }: QuotaMessage) => ({
  ...(maxIps !== undefined && { maxIps }),
  ...(maxReservations !== undefined && { maxReservations }),
});

interface QuotaMessage {
  max_ips?: number | undefined;
  max_reservations?: number | undefined;
}

const createPoolRequest = z.object({
  name: pool.poolName,
  address_space: pool.addressSpace,
  type: poolTypeField.pipe(pool.type),
  ranges: pool.ranges,
  parent: pool.parent,
  prefix_length: pool.prefixLength,
  port_range: pool.portRange,
  reserved: pool.reserved,
  static_only: pool.staticOnly,
  tenant: pool.tenant,
  quota: z.object({ max_ips: quota.maxIps, max_reservations: quota.maxReservations }).transform(toQuota).optional(),
  allocation: allocationPolicyField.pipe(pool.allocation),
  auto_assign: pool.autoAssign,
  avoid_boundary_ips: pool.avoidBoundaryIps,
  warn_at_percent: pool.warnAtPercent,
  labels: pool.labels,
});

const toCreatePoolInput = (request: z.output<typeof createPoolRequest>): z.output<typeof createPoolInput> => ({
  poolName: request.name,
  addressSpace: request.address_space,
  type: request.type,
  ranges: request.ranges,
  parent: request.parent,
  prefixLength: request.prefix_length,
  portRange: request.port_range,
  reserved: request.reserved,
  staticOnly: request.static_only,
  tenant: request.tenant,
  quota: request.quota,
  allocation: request.allocation,
  autoAssign: request.auto_assign,
  avoidBoundaryIps: request.avoid_boundary_ips,
  warnAtPercent: request.warn_at_percent,
  labels: request.labels,
});

const allocationRequest = z.object({
  service_uid: allocateInput.shape.uid,
  pool: allocateInput.shape.pool,
  pool_type: poolTypeField,
  tenant: pool.tenant,
});

const allocateRequest = allocationRequest.extend({
  requested_ip: allocateInput.shape.ip,
  requested_port: allocateInput.shape.port,
  labels: allocateInput.shape.labels,
});

/** Which of a service's addresses are meant. */
const toAllocationInput = (request: z.output<typeof allocationRequest>) => ({
  uid: request.service_uid,
  pool: request.pool,
  type: request.pool_type,
  tenant: request.tenant,
});

export const ipamMethods = {
  CreatePool: unary({
    scope: "admin",
    request: createPoolRequest,
    run: async ({ overlay }, request) => {
      const { name } = await createPool(overlay, toCreatePoolInput(request));
      return toPoolMessage(await showPool(overlay, name));
    },
  }),

  GetPool: unary({
    scope: "read",
    request: z.object({ name: deletePoolInput.shape.pool }),
    run: async ({ overlay }, { name }) => toPoolMessage(await showPool(overlay, name)),
  }),

  ListPools: unary({
    scope: "read",
    request: z.object({ prefix: page.prefix, page_size: z.number().int().optional(), page_token: page.after }),
    run: async ({ overlay, service }, { prefix, page_size: size = Infinity, page_token: after }) => {
      const limit = Math.min(size, service.limits.pageLimit);
      const { pools, next } = await poolUsagePage(overlay, { prefix, after, limit });
      return { pools: pools.map(toPoolMessage), next_page_token: next };
    },
  }),

  DeletePool: unary({
    scope: "admin",
    request: z.object({ name: deletePoolInput.shape.pool }),
    run: async ({ overlay }, { name }) => {
      await deletePool(overlay, name);
      return {};
    },
  }),

  AllocateIP: unary({
    scope: "reserve",
    request: allocateRequest,
    run: async ({ overlay }, request) => {
      const { requested_ip: ip, requested_port: port, labels } = request;
      const lease = await allocate(overlay, { ...toAllocationInput(request), ip, port, labels });
      return { service_uid: request.service_uid, lease: toLeaseMessage(describeLease(lease)) };
    },
  }),

  ReleaseIP: unary({
    scope: "reserve",
    request: allocationRequest,
    run: async ({ overlay }, request) => ({
      released: describeLeases(await deallocate(overlay, toAllocationInput(request))),
    }),
  }),

  GetAllocation: unary({
    scope: "read",
    request: allocationRequest,
    run: async ({ overlay }, request) => {
      const leases = await findAllocations(overlay, toAllocationInput(request));
      if (leases.length === 0) throw noAllocationError(request.service_uid);
      return { allocations: describeLeases(leases).map((lease) => ({ service_uid: request.service_uid, lease })) };
    },
  }),
};

const noAllocationError = (uid: string): OverlayError =>
  new OverlayError("NOT_FOUND", `Service ${uid} has no address there.`, "AllocateIP allocates one.");
