import type { MethodDefinition, ServiceDefinition } from "@grpc/grpc-js";
import { fromJSON } from "@grpc/proto-loader";

/**
 * The part of etcd's v3 API that is used. Names, types and numbers of fields are those of etcd's rpc.proto, kv.proto and auth.proto; fields that
 * are never set or read are left out, which the wire format allows.
 */
const ENUMS = {
  SortOrder: ["NONE", "ASCEND", "DESCEND"],
  SortTarget: ["KEY", "VERSION", "CREATE", "MOD", "VALUE"],
  CompareResult: ["EQUAL", "GREATER", "LESS", "NOT_EQUAL"],
  CompareTarget: ["VERSION", "CREATE", "MOD", "VALUE", "LEASE"],
  EventType: ["PUT", "DELETE"],
} as const;

const [KEY, RANGE_END] = [
  ["bytes", 1],
  ["bytes", 2],
] as const;
const HEADER = ["ResponseHeader", 1] as const;

const MESSAGES = {
  ResponseHeader: { revision: ["int64", 3] },
  KeyValue: { key: KEY, mod_revision: ["int64", 3], version: ["int64", 4], value: ["bytes", 5] },
  RangeRequest: {
    key: KEY,
    range_end: RANGE_END,
    limit: ["int64", 3],
    revision: ["int64", 4],
    sort_order: ["SortOrder", 5],
    sort_target: ["SortTarget", 6],
    serializable: ["bool", 7],
    keys_only: ["bool", 8],
    count_only: ["bool", 9],
  },
  RangeResponse: { header: HEADER, kvs: ["KeyValue[]", 2], count: ["int64", 4] },
  PutRequest: { key: KEY, value: ["bytes", 2], lease: ["int64", 3] },
  DeleteRangeRequest: { key: KEY, range_end: RANGE_END },
  HeaderResponse: { header: HEADER },
  RequestOp: {
    request_range: ["RangeRequest", 1],
    request_put: ["PutRequest", 2],
    request_delete_range: ["DeleteRangeRequest", 3],
    request_txn: ["TxnRequest", 4],
  },
  ResponseOp: { response_range: ["RangeResponse", 1], response_txn: ["TxnResponse", 4] },
  Compare: {
    result: ["CompareResult", 1],
    target: ["CompareTarget", 2],
    key: ["bytes", 3],
    version: ["int64", 4],
    create_revision: ["int64", 5],
    mod_revision: ["int64", 6],
    value: ["bytes", 7],
    range_end: ["bytes", 64],
  },
  TxnRequest: { compare: ["Compare[]", 1], success: ["RequestOp[]", 2], failure: ["RequestOp[]", 3] },
  TxnResponse: { header: HEADER, succeeded: ["bool", 2], responses: ["ResponseOp[]", 3] },
  LeaseGrantRequest: { TTL: ["int64", 1] },
  /** Of a grant and of a keepalive. Seconds; 0 after a keepalive of a lease that has expired. */
  LeaseResponse: { ID: ["int64", 2], TTL: ["int64", 3] },
  LeaseRequest: { ID: ["int64", 1] },
  WatchRequest: { create_request: ["WatchCreateRequest", 1] },
  /** `start_revision`: the first revision whose changes are wanted; from now on, if it is not given. */
  WatchCreateRequest: { key: KEY, range_end: RANGE_END, start_revision: ["int64", 3] },
  WatchResponse: {
    header: HEADER,
    canceled: ["bool", 4],
    compact_revision: ["int64", 5],
    cancel_reason: ["string", 6],
    events: ["Event[]", 11],
  },
  Event: { type: ["EventType", 1], kv: ["KeyValue", 2] },
  AuthenticateRequest: { name: ["string", 1], password: ["string", 2] },
  AuthenticateResponse: { token: ["string", 2] },
} as const;

type Name = keyof typeof MESSAGES;
type Enums = typeof ENUMS;
type Value<T, Int> = T extends `${infer Item}[]`
  ? Value<Item, Int>[]
  : T extends keyof Enums
    ? Enums[T][number]
    : T extends Name
      ? Fields<T, Int>
      : T extends keyof Scalars<Int>
        ? Scalars<Int>[T]
        : never;
interface Scalars<Int> {
  int64: Int;
  bytes: Buffer;
  bool: boolean;
  string: string;
}
type Fields<T extends Name, Int> = {
  [F in keyof (typeof MESSAGES)[T]]: (typeof MESSAGES)[T][F] extends readonly [infer Type, number]
    ? Value<Type, Int>
    : never;
};
type DeepPartial<T> = T extends Buffer | string | number | boolean
  ? T
  : T extends (infer Item)[]
    ? DeepPartial<Item>[]
    : { [F in keyof T]?: DeepPartial<T[F]> };

/** As it is decoded: absent fields have their defaults, 64-bit numbers are text. */
export type Received<T extends Name> = Fields<T, string>;
export type Sent<T extends Name> = DeepPartial<Fields<T, string | number>>;
export type Method<Request extends Name, Response extends Name> = MethodDefinition<Sent<Request>, Received<Response>>;

const types = Object.entries(MESSAGES).map(([name, fields]) => {
  const all = Object.entries(fields as Record<string, readonly [string, number]>).map(([field, [type, id]]) => [
    field,
    { id, type: type.replace("[]", ""), ...(type.endsWith("[]") && { rule: "repeated" }) },
  ]);
  return [name, { fields: Object.fromEntries(all) }];
});
const enums = Object.entries(ENUMS).map(([name, words]) => [
  name,
  { values: Object.fromEntries(words.map((word, i) => [word, i])) },
]);
const options = { keepCase: true, longs: String, enums: String, defaults: true };

function method<Request extends Name, Response extends Name>(
  service: string,
  name: string,
  requestType: Request,
  responseType: Response,
  isStream = false,
): Method<Request, Response> {
  const streams = { requestStream: isStream, responseStream: isStream };
  const methods = { [name]: { requestType, responseType, ...streams } };
  const nested = { ...Object.fromEntries([...types, ...enums]), [service]: { methods } };
  const definitions = fromJSON({ nested: { etcdserverpb: { nested } } }, options);
  return (definitions[`etcdserverpb.${service}`] as ServiceDefinition)[name] as Method<Request, Response>;
}

export const methods = {
  range: method("KV", "Range", "RangeRequest", "RangeResponse"),
  put: method("KV", "Put", "PutRequest", "HeaderResponse"),
  deleteRange: method("KV", "DeleteRange", "DeleteRangeRequest", "HeaderResponse"),
  txn: method("KV", "Txn", "TxnRequest", "TxnResponse"),
  leaseGrant: method("Lease", "LeaseGrant", "LeaseGrantRequest", "LeaseResponse"),
  leaseRevoke: method("Lease", "LeaseRevoke", "LeaseRequest", "HeaderResponse"),
  leaseKeepAlive: method("Lease", "LeaseKeepAlive", "LeaseRequest", "LeaseResponse", true),
  watch: method("Watch", "Watch", "WatchRequest", "WatchResponse", true),
  authenticate: method("Auth", "Authenticate", "AuthenticateRequest", "AuthenticateResponse"),
};

export type RequestOp = Sent<"RequestOp">;
export type ResponseOp = Received<"ResponseOp">;
export type Compare = Sent<"Compare">;
export type TxnRequest = Sent<"TxnRequest">;
export type TxnResponse = Received<"TxnResponse">;
export type KeyValue = Received<"KeyValue">;
export type WatchResponse = Received<"WatchResponse">;
