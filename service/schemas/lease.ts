import { z } from "zod";

/** A lease on an address or a port. Schemas in this folder validate what the service sends and document it; the client parses it with them. */

export const time = z.string().describe("RFC 3339, in UTC.");

/** Exact: a string past 2^53. */
export const count = z.union([z.number(), z.string()]);

export const leaseFields = {
  ip: z.string().describe("The address; in a pool of ports, the port."),
  ip6: z.string().optional().describe("In a dual-stack network: the IPv6 address."),
  port: z.number().int().optional(),
  pool: z.string().describe("`runner/NETWORK/RUNNER` or `pool/NAME`."),
  network: z.string().optional(),
  runner: z.string().optional(),
  state: z.enum(["offered", "reserved", "used", "quarantined", "ended"]),
  usedBy: z.string().optional().describe("The container or virtual machine that uses it."),
  createdAt: time,
  createdBy: z.string().optional().describe("User, or name of the access token."),
  expiresAt: time.optional(),
  tenant: z.string().optional().describe("`ORGANIZATION/PROJECT`."),
  labels: z.record(z.string(), z.string()).optional(),
  owner: z.string(),
  leaseId: z.string(),
};

export const leaseAnswer = z.object(leaseFields).meta({ id: "Lease", description: "A lease on an address or a port." });
