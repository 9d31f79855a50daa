import type { Tenant } from "./ipam/types";

/**
 * An owner is a scope and a URN, `SCOPE/urn:pulumi:STACK::PROJECT::TYPE::NAME`: the part before the type names the stack.
 */
export function isSameStack(a: string, b: string): boolean {
  const stack = (owner: string) => owner.split("::").slice(0, 2);
  return stack(a).length === 2 && stack(a).join("::") === stack(b).join("::");
}

/** Whether the owner is a resource of a Pulumi stack, which has a state file, or was one. Containers and services may be named like a URN. */
export const isStackOwner = (owner: string): boolean => /^(forgotten\/)?(?!service\/)[^/]+\/urn:pulumi:/.test(owner);

/** The owner of the addresses that Docker reports for a container: `docker/NETWORK/RUNNER/CONTAINER`. */
export const containerOwner = (network: string, runner: string, container: string): string =>
  `${CONTAINERS}${network}/${runner}/${container}`;

/** The caller without an access token, in owners and idempotency keys. */
export const COMMAND_LINE = "overlayctl";

export const isContainerOwner = (owner: string): boolean => owner.startsWith(CONTAINERS);

const CONTAINERS = "docker/";

/** The owner of leases that stay reserved because a host did not answer when its resource was deleted. */
export const forgottenOwner = (owner: string): string => FORGOTTEN + owner;

export const isForgotten = (owner: string): boolean => owner.startsWith(FORGOTTEN);

const FORGOTTEN = "forgotten/";

/** The owner of a range from which blocks of all tenants are given. */
export const isOwnerForAllTenants = (owner: string): boolean => owner.startsWith("tenants/");

/** Type and name, where the stack is known from the context. */
export function shortName(owner: string): string {
  const [type = "", name = owner] = owner.split("::").slice(-2);
  return `${type.split(":").at(-1)} ${name}`;
}

/** The URN by which Pulumi knows the resource: owners have other names for its types. */
export const urnOf = (owner: string): string =>
  owner.slice(owner.indexOf("/") + 1).replaceAll("overlay:index:", "pulumi-nodejs:dynamic/overlay:");

/** A tenant as a user writes it. */
export const formatTenant = ({ org, project }: Tenant): string => `${org}/${project}`;

/** The name of a tenant's block of this type, and its owner. */
export const tenantBlockName = (tenant: Tenant, type: string): string =>
  `${TENANT_BLOCKS}${formatTenant(tenant)}/${type}`;

export const isTenantBlockName = (name: string): boolean => name.startsWith(TENANT_BLOCKS);

const TENANT_BLOCKS = "tenant/";

/** Resources without a tenant count as one. */
export const isSameTenant = (a: Tenant | undefined, b: Tenant | undefined): boolean =>
  a?.org === b?.org && a?.project === b?.project;

/** Whether a pool or a lease belongs to another tenant than the caller. A caller without a tenant is the operator. */
export const isOfOtherTenant = ({ tenant }: { tenant?: Tenant }, caller: Tenant | undefined): boolean =>
  caller !== undefined && tenant !== undefined && !isSameTenant(tenant, caller);
