import type { MethodDefinition, ServiceDefinition } from "@grpc/grpc-js";
import { fromJSON } from "@grpc/proto-loader";

/**
 * The part of etcd's v3 API that is used. Names and numbers of fields are those of etcd's rpc.proto, kv.proto and auth.proto; fields that are never
 * set or read are left out, which the wire format allows. Keys and values are UTF-8 here, so they are texts instead of bytes.
 */
const ENUMS = {
  CompareResult: ["EQUAL", "GREATER", "LESS", "NOT_EQUAL"],
  CompareTarget: ["VERSION", "CREATE", "MOD", "VALUE", "LEASE"],
} as const;

const MESSAGES = {
  ResponseHeader: { revision: ["int64", 3] },
  KeyValue: { key: ["string", 1], mod_revision: ["int64", 3], value: ["string", 5] },
  RangeRequest: {
    key: ["string", 1],
    range_end: ["string", 2],
    limit: ["int64", 3],
    revision: ["int64", 4],
    serializable: ["bool", 7],
    keys_only: ["bool", 8],
  },
  RangeResponse: { kvs: ["KeyValue[]", 2] },
  PutRequest: { key: ["string", 1], value: ["string", 2] },
  DeleteRangeRequest: { key: ["string", 1], range_end: ["string", 2] },
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
    key: ["string", 3],
    mod_revision: ["int64", 6],
    range_end: ["string", 64],
  },
  TxnRequest: { compare: ["Compare[]", 1], success: ["RequestOp[]", 2], failure: ["RequestOp[]", 3] },
  TxnResponse: { header: ["ResponseHeader", 1], succeeded: ["bool", 2], responses: ["ResponseOp[]", 3] },
  AuthenticateRequest: { name: ["string", 1], password: ["string", 2] },
  AuthenticateResponse: { token: ["string", 2] },
} as const;

type Name = keyof typeof MESSAGES;
interface Scalars<Int> {
  int64: Int;
  bool: boolean;
  string: string;
}
type Value<T, Int> = T extends `${infer Item}[]`
  ? Value<Item, Int>[]
  : T extends keyof typeof ENUMS
    ? (typeof ENUMS)[T][number]
    : T extends Name
      ? Fields<T, Int>
      : T extends keyof Scalars<Int>
        ? Scalars<Int>[T]
        : never;
type Fields<T extends Name, Int> = {
  [F in keyof (typeof MESSAGES)[T]]: (typeof MESSAGES)[T][F] extends readonly [infer Type, number]
    ? Value<Type, Int>
    : never;
};
type DeepPartial<T> = T extends string | number | boolean
  ? T
  : T extends (infer Item)[]
    ? DeepPartial<Item>[]
    : { [F in keyof T]?: DeepPartial<T[F]> };

/** As it is decoded: absent fields have their defaults, 64-bit numbers are text. */
export type Received<T extends Name> = Fields<T, string>;
export type Sent<T extends Name> = DeepPartial<Fields<T, string | number>>;
export type Method<Request extends Name, Response extends Name> = MethodDefinition<Sent<Request>, Received<Response>>;
export type RequestOp = Sent<"RequestOp">;
export type Compare = Sent<"Compare">;

const fieldOf = ([type, id]: readonly [string, number]) => ({
  id,
  type: type.replace("[]", ""),
  ...(type.endsWith("[]") && { rule: "repeated" }),
});
const mapValues = <T, U>(of: Readonly<Record<string, T>>, map: (value: T) => U): Record<string, U> =>
  Object.fromEntries(Object.entries(of).map(([name, value]) => [name, map(value)]));
const TYPES = {
  ...mapValues(MESSAGES, (fields: Record<string, readonly [string, number]>) => ({
    fields: mapValues(fields, fieldOf),
  })),
  ...mapValues(ENUMS, (words: readonly string[]) => ({
    values: Object.fromEntries(words.map((word, i) => [word, i])),
  })),
};

function method<Request extends Name, Response extends Name>(
  service: string,
  name: string,
  requestType: Request,
  responseType: Response,
): Method<Request, Response> {
  const nested = { ...TYPES, [service]: { methods: { [name]: { requestType, responseType, comment: "" } } } };
  const options = { keepCase: true, longs: String, enums: String, defaults: true };
  const definitions = fromJSON({ nested: { etcdserverpb: { nested } } }, options);
  return (definitions[`etcdserverpb.${service}`] as ServiceDefinition)[name] as Method<Request, Response>;
}

export const TXN = method("KV", "Txn", "TxnRequest", "TxnResponse");
export const AUTHENTICATE = method("Auth", "Authenticate", "AuthenticateRequest", "AuthenticateResponse");
