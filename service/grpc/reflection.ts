import type { Server } from "@grpc/grpc-js";
import { loadSync, type PackageDefinition } from "@grpc/proto-loader";
import { ReflectionService } from "@grpc/reflection";
import { protoPath as HEALTH_PROTO } from "grpc-health-check";
import { messageType, OVERLAY_PROTO, STATUS_PROTO } from "./api";

/**
 * Server reflection: clients such as grpcurl ask the server for its services and messages. The descriptors that protobufjs makes lack what
 * strict clients demand: imports, absolute type names, the names of map entries, the mark of optional fields. They are completed here.
 */

/** The parts of google/protobuf/descriptor.proto that are completed. */
export interface FieldDescriptor {
  name: string;
  jsonName?: string;
  typeName?: string;
  oneofIndex?: number;
  proto3Optional?: boolean;
}

export interface MessageDescriptor {
  name: string;
  field?: FieldDescriptor[];
  nestedType?: MessageDescriptor[];
  enumType?: { name: string }[];
  oneofDecl?: { name: string }[];
  options?: { mapEntry?: boolean };
}

export interface FileDescriptor {
  name: string;
  package: string;
  dependency?: string[];
  messageType?: MessageDescriptor[];
  enumType?: { name: string }[];
}

const { serialize, deserialize } = messageType<FileDescriptor>(
  loadSync("google/protobuf/descriptor.proto", { longs: String, enums: String }),
  "google.protobuf.FileDescriptorProto",
);

/** Also the messages of error details, so that clients can show them. */
const PROTOS = [OVERLAY_PROTO, STATUS_PROTO, HEALTH_PROTO];

export function addReflection(server: Server): void {
  const loaded = PROTOS.flatMap((path) => Object.values(loadSync(path, { keepCase: true })));
  const files = (loaded as { fileDescriptorProtos?: Buffer[] }[])
    .flatMap(({ fileDescriptorProtos = [] }) => fileDescriptorProtos.map(deserialize))
    .flatMap(splitStandardTypes);
  const unique = new Map(files.map((file) => [file.name, file]));
  const fileDescriptorProtos = completeFiles([...unique.values()]).map(serialize);
  new ReflectionService({ all: { fileDescriptorProtos } } as unknown as PackageDefinition).addToServer(server);
}

/** protobufjs makes one file of a package. Clients have types such as Timestamp in files of their own. */
function splitStandardTypes(file: FileDescriptor): FileDescriptor[] {
  if (file.package !== "google.protobuf") return [file];
  return (file.messageType ?? []).map((message) => ({
    ...file,
    name: `google/protobuf/${message.name.toLowerCase()}.proto`,
    messageType: [message],
  }));
}

export function completeFiles(files: FileDescriptor[]): FileDescriptor[] {
  for (const { messageType = [] } of files) for (const message of messageType) renameMapEntries(message);
  const symbols = new Map(files.flatMap((file) => typeNamesIn(file.package, file).map((name) => [name, file.name])));
  for (const file of files) {
    const imports = new Set<string>();
    for (const message of file.messageType ?? [])
      for (const name of completeFields(message, `${file.package}.${message.name}`, symbols))
        imports.add(symbols.get(name)!);
    imports.delete(file.name);
    file.dependency = [...imports];
  }
  return files;
}

/** protoc names the entries of the map `used_labels` UsedLabelsEntry. */
function renameMapEntries({ field = [], nestedType = [] }: MessageDescriptor): void {
  for (const entry of nestedType.filter(({ options }) => options?.mapEntry)) {
    const map = field.find(({ typeName }) => typeName === entry.name)!;
    const words = map.name.split("_").map((word) => word[0]!.toUpperCase() + word.slice(1));
    map.typeName = entry.name = `${words.join("")}Entry`;
  }
}

type Scope = Pick<MessageDescriptor, "nestedType" | "enumType"> & Pick<FileDescriptor, "messageType">;

/** All messages and enums inside a file or a message, with their packages. */
function typeNamesIn(scope: string, { messageType = [], nestedType = [], enumType = [] }: Scope): string[] {
  const messages = [...messageType, ...nestedType].flatMap((message) => {
    const name = `${scope}.${message.name}`;
    return [name, ...typeNamesIn(name, message)];
  });
  return [...messages, ...enumType.map(({ name }) => `${scope}.${name}`)];
}

/** Completes the fields of a message and of those inside it. Returns the types that they have. */
function completeFields(message: MessageDescriptor, scope: string, symbols: Map<string, string>): string[] {
  const { field = [], nestedType = [], oneofDecl = [] } = message;
  const used = nestedType.flatMap((nested) => completeFields(nested, `${scope}.${nested.name}`, symbols));
  for (const each of field) {
    each.jsonName = each.name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
    // protobufjs puts an optional field into a oneof of its own, which is named after it.
    if (each.oneofIndex !== undefined && oneofDecl[each.oneofIndex]?.name === `_${each.name}`)
      each.proto3Optional = true;
    if (each.typeName === undefined) continue;
    const name = resolveType(each.typeName, scope, symbols);
    each.typeName = `.${name}`;
    used.push(name);
  }
  return used;
}

/** A relative name means the innermost type of that name around it. */
function resolveType(given: string, scope: string, symbols: Map<string, string>): string {
  const scopes = scope.split(".").map((_, i, parts) => `${parts.slice(0, parts.length - i).join(".")}.`);
  const found = [...scopes, ""].map((prefix) => prefix + given.replace(/^\./, "")).find((name) => symbols.has(name));
  if (found === undefined) throw new Error(`No .proto file has the type ${given}, which ${scope} uses.`);
  return found;
}
