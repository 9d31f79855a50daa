import { join } from "node:path";
import type { ServiceDefinition } from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition, type PackageDefinition } from "@grpc/proto-loader";

/** The services and messages of the `.proto` files beside this one. The build copies them to dist/. */

const PACKAGE = "overlay.ipam.v1";
export const OVERLAY_PROTO = join(__dirname, "overlay.proto");

/** Decoded messages have camelCase names, enums by name and 64-bit numbers as text. Absent fields have no entry. */
const overlay = loadSync(OVERLAY_PROTO, { longs: String, enums: String });

export const SERVICE_NAMES = ["Ipam", "Reservations"] as const;
export type ServiceName = (typeof SERVICE_NAMES)[number];

/** As it is in paths of calls, for the health service and for reflection. */
export const fullName = (service: ServiceName): string => `${PACKAGE}.${service}`;

export const serviceDefinition = (service: ServiceName): ServiceDefinition =>
  overlay[fullName(service)] as ServiceDefinition;

/** A message that is written and read by itself, not as a part of a call. */
export const messageType = <T extends object>(from: PackageDefinition, name: string): MessageTypeDefinition<T, T> =>
  from[name] as unknown as MessageTypeDefinition<T, T>;
