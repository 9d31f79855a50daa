import { join } from "node:path";
import type { MethodDefinition, ServiceDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

/** The messages of `etcd.proto` as they are decoded: 64-bit numbers as text, enums by name, absent fields with their defaults. */

export interface ResponseHeader {
  revision: string;
}

export interface KeyValue {
  key: Buffer;
  value: Buffer;
  mod_revision: string;
  /** How often the key was put since it was created. */
  version: string;
}

export interface RangeRequest {
  key: Buffer;
  range_end?: Buffer;
  limit?: number;
  revision?: string;
  sort_order?: "ASCEND";
  sort_target?: "CREATE" | "MOD" | "VALUE";
  serializable?: boolean;
  keys_only?: boolean;
  count_only?: boolean;
  min_mod_revision?: string;
}
export interface RangeResponse {
  header: ResponseHeader;
  kvs: KeyValue[];
  count: string;
}

export interface PutRequest {
  key: Buffer;
  value: Buffer;
  lease?: string;
}
export interface DeleteRangeRequest {
  key: Buffer;
  range_end?: Buffer;
}
export interface HeaderResponse {
  header: ResponseHeader;
}

/** One of the four. */
export interface RequestOp {
  request_range?: RangeRequest;
  request_put?: PutRequest;
  request_delete_range?: DeleteRangeRequest;
  request_txn?: TxnRequest;
}
export interface ResponseOp {
  response_range?: RangeResponse;
  response_txn?: TxnResponse;
}

export interface Compare {
  key: Buffer;
  range_end?: Buffer;
  result: "EQUAL" | "GREATER" | "LESS" | "NOT_EQUAL";
  target: "CREATE" | "MOD" | "VALUE" | "VERSION";
  create_revision?: number;
  mod_revision?: string;
  version?: number;
  value?: Buffer;
}

export interface TxnRequest {
  compare?: Compare[];
  success?: RequestOp[];
  failure?: RequestOp[];
}
export interface TxnResponse {
  header: ResponseHeader;
  succeeded: boolean;
  responses: ResponseOp[];
}

export interface LeaseResponse {
  ID: string;
  /** Seconds; 0 after a keepalive of a lease that has expired. */
  TTL: string;
}

export interface WatchCreateRequest {
  key: Buffer;
  range_end?: Buffer;
  /** The first revision whose changes are wanted; from now on, if it is not given. */
  start_revision?: string;
}
export interface WatchEvent {
  type: "PUT" | "DELETE";
  kv: KeyValue;
}
export interface WatchResponse {
  header: ResponseHeader;
  created: boolean;
  canceled: boolean;
  compact_revision: string;
  cancel_reason: string;
  events: WatchEvent[];
}

export interface AuthenticateResponse {
  token: string;
}

export type Method<Request, Response> = MethodDefinition<Request, Response>;

/** `setup/build.mjs` copies the file beside the compiled module. */
const definitions = loadSync(join(__dirname, "etcd.proto"), {
  keepCase: true,
  longs: String,
  enums: String,
  defaults: true,
});

const find = <Request, Response>(service: string, method: string): Method<Request, Response> =>
  (definitions[`etcdserverpb.${service}`] as ServiceDefinition)[method] as Method<Request, Response>;

export const methods = {
  range: find<RangeRequest, RangeResponse>("KV", "Range"),
  put: find<PutRequest, HeaderResponse>("KV", "Put"),
  deleteRange: find<DeleteRangeRequest, HeaderResponse>("KV", "DeleteRange"),
  txn: find<TxnRequest, TxnResponse>("KV", "Txn"),
  leaseGrant: find<{ TTL: number }, LeaseResponse>("Lease", "LeaseGrant"),
  leaseRevoke: find<{ ID: string }, HeaderResponse>("Lease", "LeaseRevoke"),
  leaseKeepAlive: find<{ ID: string }, LeaseResponse>("Lease", "LeaseKeepAlive"),
  watch: find<{ create_request: WatchCreateRequest }, WatchResponse>("Watch", "Watch"),
  authenticate: find<{ name: string; password: string }, AuthenticateResponse>("Auth", "Authenticate"),
};
