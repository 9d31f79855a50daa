import { MAX_IP, parseIp } from "../../../provider/addressing/ip";
import type { Store } from "../../../provider/ipam";
import { OPERATIONS as NAMES, type OperationName } from "../../../provider/ipam/remote/api";
import { rangeOf, rangeText } from "../../../provider/ipam/store/columns";

/**
 * Requests that are valid, and as dear as a valid request can be: the most entries in each list, the most values in a body, the largest pages. By
 * route, and by operation of the pool: one that is missing here is named by the test.
 */

export interface HostileRequest {
  /** `POST /api/overlay/ip/reserve`. */
  route: string;
  /** What is dear in it. */
  name: string;
  /** With its query. */
  url: string;
  body?: object;
}

type Sample = [name: string, more: string, body?: object];

const list = <T>(count: number, entry: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => entry(i));
const LONG = "x".repeat(200);
const RUNNER = "runner%2Ftraining%2Fnode1";
const address = (i: number): string => `10.128.${64 + (i >> 8)}.${i & 255}`;
const TOKEN = `ipr1.AAAAAAAA.${"A".repeat(4000)}.${"A".repeat(43)}`;
/** Ranges that neither overlap nor touch. */
const ranges = (count: number): string[] =>
  list(count, (i) => `172.${16 + (i >> 14)}.${(i >> 6) & 255}.${(i & 63) * 4}`);

const labelsOf = (count: number) => Object.fromEntries(list(count, (i) => [`key-${i}`, `${i}`]));

const ROUTES: Record<string, Sample[]> = {
  "POST /ip/reserve": [
    ["the most addresses on one runner", "", { runner: "node1", count: 64, owner: LONG }],
    ["the most addresses on any runner", "", { network: "training", placement: "spread", count: 64 }],
  ],
  "POST /ip/validate": [["a long token", "", { token: TOKEN }]],
  "POST /ip/use": [["a long name", "", { ip: address(9), container: LONG }]],
  "POST /ip/release": [["a container of no runner", "", { container: LONG }]],
  "POST /ip/free": [["an address", "", { ip: address(9) }]],
  "GET /ip/reservations": [
    ["many labels that nothing has", `?limit=1000&${list(20, (i) => `label=k${i}%3Dv`).join("&")}`],
    ["an owner that nothing has", `?limit=1000&owner=${LONG}`],
    ["a container that nothing has", `?limit=1000&container=${LONG}`],
  ],
  "GET /ip/available": [["all pools", "?limit=1000"]],
  "GET /ip/stats": [["all pools", ""]],
  "GET /ip/info/:runner": [["a runner without its network", "/node1"]],
  "GET /addresses/:ip": [["an address", `/${address(9)}`]],
  "GET /addresses/:ip/history": [["the longest page", `/${address(9)}/history?limit=1000`]],
  "GET /pools": [["the longest page", "?limit=1000"]],
  "GET /pools/:pool": [["a runner", `/${RUNNER}`]],
  "GET /pools/:pool/history": [["the longest page", `/${RUNNER}/history?limit=1000`]],
  "POST /pools": [
    ["the most ranges", "", { poolName: "ranges", ranges: ranges(256) }],
    [
      "the most reserved ranges",
      "",
      {
        poolName: "reserved",
        ranges: ["172.24.0.0/13"],
        reserved: ranges(256).map((text) => text.replace(/^172\.(\d+)/, (_, b) => `172.${Number(b) + 8}`)),
      },
    ],
    ["a range of all addresses", "", { poolName: "all", ranges: ["::/0"] }],
  ],
  "DELETE /pools/:pool": [["a pool", "/none"]],
  "GET /runners/:runner": [["a runner", "/node1"]],
  "POST /runners/:runner/heartbeat": [["a runner", "/node1/heartbeat"]],
  "POST /runners/:runner/report": [
    [
      "the most containers",
      "/node1/report",
      {
        containers: list(4000, (i) => ({ name: `c${i}`, ip: address(i) })),
        complete: true,
        free: true,
        olderThan: 0,
      },
    ],
  ],
  "GET /webhooks": [["all", ""]],
  "POST /webhooks": [["a long URL", "", { url: `https://example.com/${"x".repeat(1900)}` }]],
  "POST /webhooks/:id/resume": [["one that is not there", "/none/resume"]],
  "DELETE /webhooks/:id": [["one that is not there", "/none"]],
};

/** By method of gRPC. */
export const MESSAGES: Record<string, [name: string, message: object][]> = {
  "Ipam.CreatePool": [
    ["the most ranges", { name: "messages", ranges: ranges(256) }],
    ["the most labels", { name: "labelled", ranges: ["172.31.255.0/24"], labels: labelsOf(900) }],
  ],
  "Ipam.GetPool": [["a runner", { name: "runner/training/node1" }]],
  "Ipam.ListPools": [["the longest page", { pageSize: 4_000_000_000 }]],
  "Ipam.DeletePool": [["a pool", { name: "none" }]],
  "Ipam.AllocateIP": [["the most labels", { serviceUid: "u1", pool: "messages", labels: labelsOf(900) }]],
  "Ipam.ReleaseIP": [["a long uid", { serviceUid: LONG, pool: "messages" }]],
  "Ipam.GetAllocation": [["in no pool", { serviceUid: LONG }]],
  "Reservations.Reserve": [
    ["the most addresses on one runner", { runner: "node1", count: 64, owner: LONG }],
    ["the most addresses on any runner", { network: "training", placement: "SPREAD", count: 64 }],
  ],
  "Reservations.Validate": [["a long token", { token: TOKEN }]],
  "Reservations.Use": [["a long name", { ip: address(9), container: LONG }]],
  "Reservations.Release": [["a container of no runner", { container: LONG }]],
  "Reservations.Free": [["an address", { ip: address(9) }]],
  "Reservations.Watch": [["from the oldest change on", { after: "0" }]],
};

const wire = (i: number): string => rangeText({ first: parseIp(address(i)), last: parseIp(address(i)) });
const sparse = (count: number): string[] => list(count, (i) => wire(2 * i));
const owner = (i: number): string => `s/urn:pulumi:prod::shop::overlay:index:T::hostile-${i}`;
const SPEC = { name: "pool/many", kind: "address", allocation: "lowest" };
const request = (i: number, more: object = {}) => ({
  ...{ pool: "runner/training/node1", owner: owner(i), type: "IPReservation", program: "main", run: "run" },
  ...more,
});
const uids = list(10_000, (i) => i.toString(16).padStart(16, "0"));
const place = { pool: "runner/training/node1", leaseId: `${uids[0]}.${uids[1]}` };
const seen = { id: "none", version: 1, epoch: "e" };

const OPERATIONS: Record<OperationName, [name: string, input: object][]> = {
  describe: [["another store", { seen }]],
  offer: [
    ["the most values", request(1, { values: sparse(256) })],
    ["the most declared values", request(2, { declared: sparse(10_000) })],
    ["the most uids", request(3, { mayEnd: uids, stays: uids })],
    ["the most labels", request(4, { labels: labelsOf(900) })],
    ["the most preferred values", request(5, { preferred: sparse(256) })],
    ["the most ranges to choose in", request(6, { secondRange: list(256, () => wire(9)) })],
    ["the most ports", request(7, { sharingKey: "k", ports: list(1000, (port) => ({ protocol: "tcp", port })) })],
    ["the most ranges of a pool", request(8, { spec: { ...SPEC, ranges: sparse(256) } })],
    [
      "reserved ranges of a pool",
      request(9, {
        spec: {
          ...SPEC,
          ranges: [rangeText({ first: 0n, last: MAX_IP })],
          reserved: sparse(256),
          staticOnly: sparse(256),
        },
      }),
    ],
  ],
  withdraw: [["an owner", { owner: owner(1), program: "main", pool: "runner/training/node1" }]],
  claim: [
    ["the most values", [request(10, { values: sparse(256), childPool: { ...SPEC, ranges: sparse(256) } })]],
    ["the most requests", list(64, (i) => request(100 + i))],
    ["the most requests of one owner", list(64, () => request(11, { idempotent: true }))],
  ],
  change: [["the most values", { ...place, changes: { ranges: sparse(256) }, dryRun: true }]],
  importLeases: [
    [
      "the most leases",
      { leases: list(64, (i) => ({ pool: "runner/training/node1", owner: owner(i), type: "T", values: [wire(i)] })) },
    ],
    [
      "leases of one value",
      { leases: list(64, (i) => ({ pool: "runner/training/node1", owner: owner(i), type: "T", values: [wire(7)] })) },
    ],
  ],
  close: [["a lease", place]],
  release: [["a lease", place]],
  touch: [["a lease", place]],
  signTokens: [["the most leases", list(64, () => place)]],
  openToken: [["a long token", { token: TOKEN }]],
  find: [["a name", { name: LONG }]],
  leases: [["the longest page", { pool: "runner/training/node1", limit: 300 }]],
  pools: [["the longest page", { prefix: "", limit: 300, withUsage: true }]],
  freeRanges: [["the most ranges", { pool: "runner/training/node1", limit: 10_000 }]],
  events: [
    ["the longest page", { after: 0, limit: 300 }],
    ["the longest history of a pool", { pool: "runner/training/node1", limit: 300 }],
  ],
};

/** Fills the store of the requests: a subnet with leases and offers, and its history. */
export async function fillStore(pool: Store, leases: number): Promise<void> {
  const filled = list(leases, (i) => ({ ...request(0), owner: owner(20_000 + i), values: [rangeOf(wire(600 + i))] }));
  const { conflicts } = await pool.importLeases(filled);
  if (conflicts[0]) throw conflicts[0].error;
  for (let i = 0; i < leases / 10; i++) await pool.offer({ ...request(0), owner: owner(40_000 + i) });
}

/** The same request for other resources, so that it is as dear when it is sent again. */
export const sentAgain = (body: object | undefined, round: number): string | undefined =>
  body &&
  JSON.stringify(body)
    .replaceAll("hostile-", `hostile${round}-`)
    .replaceAll(LONG, LONG.slice(1) + round)
    .replaceAll('"name":"c', `"name":"c${round}-`);

const SESSION = { actor: "ann@laptop", offerTtl: 60, quarantine: 0 };

export function hostileRequests(): HostileRequest[] {
  const routes = Object.entries(ROUTES).flatMap(([route, samples]) => {
    const [method, path] = route.split(" ") as [string, string];
    const base = path.replace(/\/:.*$/, "");
    return samples.map(([name, more, body]) => ({
      route: `${method} /api/overlay${path}`,
      name,
      url: `/api/overlay${base}${more}`,
      ...(body && { body }),
    }));
  });
  const operations = NAMES.flatMap((operation) =>
    (OPERATIONS[operation] ?? []).map(([name, input]) => ({
      route: `POST /api/pool/v1/${operation}`,
      name,
      url: `/api/pool/v1/${operation}`,
      body: { session: SESSION, input },
    })),
  );
  return [...routes, ...operations];
}
