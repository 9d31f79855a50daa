import { join } from "node:path";
import type { MethodDefinition as GrpcMethod } from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition, type PackageDefinition } from "@grpc/proto-loader";

/** The services and messages of the `.proto` files beside this one. The build copies them to dist/. */

const PACKAGE = "overlay.ipam.v1";
export const OVERLAY_PROTO = join(__dirname, "overlay.proto");
export const STATUS_PROTO = join(__dirname, "status.proto");

/** Decoded messages have the names of the file, enums by name and 64-bit numbers as text. Absent fields have no entry. */
const overlay = loadSync(OVERLAY_PROTO, { keepCase: true, longs: String, enums: String });

export const SERVICE_NAMES = ["Ipam", "Reservations"] as const;
export type ServiceName = (typeof SERVICE_NAMES)[number];

export interface MethodDefinition extends GrpcMethod<Record<string, unknown>, object> {
  /** Each `optional` field has a oneof of its own, which is named after it. */
  requestType: { type: { field: { name: string }[]; oneofDecl: { name: string }[] } };
}

export const fieldNames = ({ requestType }: MethodDefinition): string[] =>
  requestType.type.field.map(({ name }) => name);

export const isOptional = ({ requestType }: MethodDefinition, field: string): boolean =>
  requestType.type.oneofDecl.some(({ name }) => name === `_${field}`);

/** As it is in paths of calls, for the health service and for reflection. */
export const fullName = (service: ServiceName): string => `${PACKAGE}.${service}`;

/** The methods of a service, by name. */
export const serviceDefinition = (service: ServiceName): Record<string, MethodDefinition> =>
  overlay[fullName(service)] as unknown as Record<string, MethodDefinition>;

/** The names of an enum's values. */
export const enumNames = (name: string): string[] =>
  (overlay[`${PACKAGE}.${name}`] as unknown as { type: { value: { name: string }[] } }).type.value.map(
    (value) => value.name,
  );

/** A message that is written and read by itself, not as a part of a call. */
export const messageType = <T extends object>(from: PackageDefinition, name: string): MessageTypeDefinition<T, T> =>
  from[name] as unknown as MessageTypeDefinition<T, T>;
