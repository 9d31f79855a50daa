import { z } from "zod";
import { OverlayError } from "../../provider/errors";
import {
  allocate,
  allocateInput,
  type CreatePoolInput,
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
import {
  allocationPolicyField,
  describeLeases,
  fromFields,
  poolTypeField,
  toFields,
  toLeaseMessage,
  toPoolMessage,
} from "./messages";
import { unary } from "./methods";

/** The service `Ipam`: pools, and addresses of services. */

const { poolName, type, allocation, quota: limits, ...others } = createPoolInput.shape;
const page = poolPageInput.shape;
const quota = z.object(toFields(limits.unwrap().shape));

const createPoolRequest = z.object({
  name: poolName,
  ...toFields(others),
  type: poolTypeField.pipe(type),
  allocation: allocationPolicyField.pipe(allocation),
  quota: quota.optional(),
});

/** The fields have the schemas of the inputs. */
const toCreatePoolInput = ({ name, quota, ...rest }: z.output<typeof createPoolRequest>): CreatePoolInput =>
  ({ ...fromFields<unknown>(rest), poolName: name, quota: quota && fromFields(quota) }) as unknown as CreatePoolInput;

const allocationRequest = z.object({
  service_uid: allocateInput.shape.uid,
  pool: allocateInput.shape.pool,
  pool_type: poolTypeField,
  tenant: others.tenant,
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
