import { readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { Client, credentials, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import {
  loadFileDescriptorSetFromBuffer,
  loadSync,
  type MessageTypeDefinition,
  type ServiceDefinition,
} from "@grpc/proto-loader";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { revokeAccessToken } from "../../provider/access/access-tokens";
import { TlsCredentials } from "../../service/grpc/credentials";
import { readTls } from "../../service/tls";
import { Stage } from "../unit/lifecycle/stage";
import { type Answer, type CallOptions, type Connection, GrpcService } from "./grpc-service";
import { type Authority, newAuthority } from "./servers/certificates";

/** TLS, streams, deadlines, the end of the server, health and reflection. */
let stage: Stage;
let service: GrpcService;
let admin: string;

const start = async (options: Parameters<typeof GrpcService.on>[1] = {}): Promise<GrpcService> => {
  service = await GrpcService.on(stage.pool.ipam, options);
  admin = await service.token("ops", ["admin"]);
  return service;
};
const reserve = (container: string, pool = "web"): Promise<Answer> =>
  service.connect().call("Reservations.Reserve", { pool, container }, admin);

beforeEach(async () => {
  stage = await Stage.up({ quarantine: 0 });
  await stage.make("IPPool", "web", { ranges: ["172.20.7.0/28"], allocation: "lowest" });
});
afterEach(() => service.stop());

describe("Watch", () => {
  test("sends each change, in order, whichever process has made it", async () => {
    await start();
    await reserve("before");
    const watcher = service.connect().watch({}, admin);
    const { position } = await watcher.next();
    await stage.make("IPReservation", "own", { pool: "web" });
    const { reservations } = await reserve("c1");
    await service.connect().call("Reservations.Use", { token: reservations[0].token, container: "c1" }, admin);
    const events = [await watcher.event(), await watcher.event(), await watcher.event()];
    expect(events.map(({ kind, values, by }) => [kind, values[0], by])).toEqual([
      ["EVENT_KIND_CLAIMED", "172.20.7.1", "ops@controller"],
      ["EVENT_KIND_CLAIMED", "172.20.7.2", "ops"],
      ["EVENT_KIND_USED", "172.20.7.2", "ops"],
    ]);
    expect(events.map(({ id }) => Number(id) - Number(position))).toEqual([1, 2, 3]);
    expect(events[2]).toEqual({
      id: expect.any(String),
      time: { seconds: "1893456000", nanos: 0 },
      kind: "EVENT_KIND_USED",
      pool: "pool/web",
      values: ["172.20.7.2"],
      owner: "overlayctl/pool/web/c1",
      leaseUid: expect.any(String),
      leaseId: reservations[0].lease.leaseId,
      usedBy: "c1",
      by: "ops",
    });
    watcher.cancel();
  });

  test("continues after a disconnect, without a gap and without a repetition", async () => {
    await start();
    const first = service.connect().watch({}, admin);
    await first.next();
    await reserve("c1");
    const seen = await first.event();
    first.cancel();
    await Promise.all(["c2", "c3", "c4"].map((name) => reserve(name)));
    const second = service.connect().watch({ after: seen.id }, admin);
    expect(await second.next()).toEqual({ position: seen.id });
    const ids = [await second.event(), await second.event(), await second.event()].map(({ id }) => Number(id));
    expect(ids).toEqual([1, 2, 3].map((i) => Number(seen.id) + i));
    second.cancel();
    const all = service.connect().watch({ after: 0 }, admin);
    expect(await all.event()).toMatchObject({ id: "1" });
    all.cancel();
  });

  test("sends only what is asked for and what the token may see", async () => {
    await stage.make("IPPool", "other", { ranges: ["172.20.8.0/28"] });
    await start();
    const acme = { org: "acme", project: "shop" };
    const bound = await service.token("acme", ["admin"], { tenant: acme });
    const ofPool = service.connect().watch({ pool: "pool/other" }, admin);
    const ofTenant = service.connect().watch({ tenant: acme }, admin);
    const ofToken = service.connect().watch({}, bound);
    for (const watcher of [ofPool, ofTenant, ofToken]) await watcher.next();
    await reserve("c1");
    await reserve("c2", "other");
    await service.connect().call("Reservations.Reserve", { pool: "web", owner: "mine" }, bound);
    expect(await ofPool.event()).toMatchObject({ pool: "pool/other", owner: "overlayctl/pool/other/c2" });
    expect(await ofTenant.event()).toMatchObject({ tenant: acme, by: "acme" });
    expect(await ofToken.event()).toMatchObject({ tenant: acme, by: "acme" });
    for (const watcher of [ofPool, ofTenant, ofToken]) watcher.cancel();
  });

  test("from a position that the store does not have, it says that changes are lost", async () => {
    await start();
    expect(await service.connect().outcome("Reservations.Watch", { after: 999_999 }, admin)).toBe(
      "NOT_FOUND EVENTS_LOST",
    );
  });

  test("ends when its token is revoked, before the next change is sent", async () => {
    await start();
    const watcher = service.connect().watch({}, await service.token("guest", ["read"]));
    await watcher.next();
    await revokeAccessToken(stage.pool.ipam, "guest");
    await new Promise((resolve) => setTimeout(resolve, 1100)); // tokens are cached for a second
    await reserve("c1");
    await expect(watcher.event()).rejects.toMatchObject({ outcome: "UNAUTHENTICATED ACCESS_TOKEN_INVALID" });
  });

  test("costs nothing after the client has gone", async () => {
    await start();
    const connection = service.connect();
    const watcher = connection.watch({}, admin);
    await watcher.next();
    expect(service.feed.followers).toBe(1);
    connection.client.close();
    watcher.cancel();
    await expect.poll(() => service.feed.followers).toBe(0);
  });
});

describe("a deadline", () => {
  test("ends a stream, and what it follows", async () => {
    await start();
    const watcher = service.connect().watch({}, admin, { deadline: 2500 });
    await watcher.next();
    await expect(watcher.event()).rejects.toMatchObject({ status: "DEADLINE_EXCEEDED" });
    await expect.poll(() => service.feed.followers).toBe(0);
    // The clocks of client and server run apart by a millisecond: the client may cancel it first.
    await expect.poll(() => service.lines.join("")).toMatch(/"status":"(DEADLINE_EXCEEDED|CANCELLED)"/);
  });

  test("that has passed before the function runs leaves no trace", async () => {
    await start();
    const connection = service.connect();
    const call = await callWithSlowLookup(connection, 3000, { deadline: 1500 });
    await expect(call.answer).rejects.toMatchObject({ status: "DEADLINE_EXCEEDED" });
    await expect
      .poll(() => service.lines.join(""), { timeout: 20_000 })
      .toContain('/AllocateIP","status":"DEADLINE_EXCEEDED"');
    expect(await stage.pool.ipam.leases("pool/web")).toEqual([]);
  });
});

/** A call that has reached the server, which now looks up its token. */
async function callWithSlowLookup(connection: Connection, lookupMs: number, options: CallOptions = {}) {
  await connection.outcome("Ipam.ListPools", {}, admin);
  await new Promise((resolve) => setTimeout(resolve, 1100)); // tokens are cached for a second
  const { lookups } = service;
  service.lookupMs = lookupMs;
  const answer = connection.call("Ipam.AllocateIP", { serviceUid: "u", pool: "web" }, admin, options);
  answer.catch(() => {});
  await expect.poll(() => service.lookups, { timeout: 20_000 }).toBe(lookups + 1);
  return { answer };
}

test("connections without a valid call are closed when there are nearly too many", async () => {
  await start({ mostConnections: 10 });
  const watcher = service.connect().watch({}, admin);
  await watcher.next();
  const [host, port] = service.address.split(":") as [string, string];
  const strangers = Array.from({ length: 30 }, () =>
    connect(Number(port), host)
      .on("error", () => {})
      .resume(),
  );
  await expect.poll(() => strangers.filter(({ closed }) => closed).length).toBeGreaterThan(20);
  await reserve("c1");
  expect(await watcher.event()).toMatchObject({ kind: "EVENT_KIND_CLAIMED" });
  for (const socket of strangers) socket.destroy();
});

describe("the end of the server", () => {
  test("answers calls under way, ends streams with a reason, and accepts no new call", async () => {
    await start();
    const connection = service.connect();
    const watcher = connection.watch({}, admin);
    await watcher.next();
    const underWay = await callWithSlowLookup(connection, 500);
    const began = Date.now();
    await service.stop();
    expect(Date.now() - began).toBeLessThan(8000);
    expect(await underWay.answer).toMatchObject({ lease: { ip: "172.20.7.0" } });
    await expect(watcher.event()).rejects.toMatchObject({ outcome: "UNAVAILABLE SERVICE_STOPPING" });
    const late = service.connect().call("Ipam.ListPools", {}, admin, { deadline: 2000 });
    await expect(late).rejects.toMatchObject({ status: expect.stringMatching(/UNAVAILABLE|DEADLINE_EXCEEDED/) });
  });

  test("does not wait for clients that watch its health", async () => {
    await start();
    const watching = healthWatch(service.address);
    await expect.poll(() => watching.statuses).toEqual(["SERVING"]);
    const began = Date.now();
    await service.stop();
    expect(Date.now() - began).toBeLessThan(8000);
    expect(watching.statuses).toEqual(["SERVING", "NOT_SERVING"]);
    watching.client.close();
  });
});

test("calls are measured by method and status, and streams are counted", async () => {
  await start();
  const client = service.connect();
  await client.call("Ipam.ListPools", {}, admin);
  await client.outcome("Ipam.GetPool", { name: "nosuch" }, admin);
  const watcher = client.watch({}, admin);
  await watcher.next();
  const metrics = await service.context.metrics.render(stage.pool.ipam);
  const count = "overlay_grpc_call_duration_seconds_count";
  expect(metrics).toContain(`${count}{method="/overlay.ipam.v1.Ipam/ListPools",status="OK"} 1`);
  expect(metrics).toContain(`${count}{method="/overlay.ipam.v1.Ipam/GetPool",status="NOT_FOUND"} 1`);
  expect(metrics).not.toContain("Watch");
  expect(metrics).toContain("overlay_event_streams 1");
  watcher.cancel();
});

test("a request that is too large is refused", async () => {
  await start({ limits: { bodyLimit: 1000 } });
  const request = { serviceUid: "u", pool: "web", labels: { big: "x".repeat(2000) } };
  await expect(service.connect().call("Ipam.AllocateIP", request, admin)).rejects.toMatchObject({
    status: "RESOURCE_EXHAUSTED",
  });
});

describe("TLS", () => {
  let authority: Authority;
  let other: Authority;
  beforeAll(() => {
    [authority, other] = [newAuthority(), newAuthority()];
  });
  afterAll(() => {
    for (const { folder } of [authority, other]) rmSync(folder, { recursive: true, force: true });
  });

  const filesOf = (name: string, clientCa?: string) => {
    const { cert, key } = authority.issue(name, "IP:127.0.0.1,DNS:localhost");
    return readTls({ tlsCert: cert, tlsKey: key, clientCa });
  };
  const channel = (ca: string, client?: { cert: string; key: string }) =>
    credentials.createSsl(
      readFileSync(ca),
      client ? readFileSync(client.key) : undefined,
      client ? readFileSync(client.cert) : undefined,
    );
  const outcome = (secure: ReturnType<typeof channel>): Promise<string> =>
    service.connect(secure).outcome("Ipam.ListPools", {}, admin, { deadline: 15_000 });
  const REFUSED = /^(UNAVAILABLE|DEADLINE_EXCEEDED)$/;

  test("serves clients that trust its authority, and changes its certificate while it runs", async () => {
    const tls = new TlsCredentials(filesOf("first"));
    await start({ credentials: tls });
    expect(await outcome(channel(authority.ca))).toBe("OK");
    expect(await outcome(channel(other.ca))).toMatch(REFUSED);
    expect(await outcome(credentials.createInsecure())).toMatch(REFUSED);
    const { cert, key } = other.issue("second", "IP:127.0.0.1,DNS:localhost");
    tls.update(readTls({ tlsCert: cert, tlsKey: key }));
    expect(await outcome(channel(other.ca))).toBe("OK");
    expect(await outcome(channel(authority.ca))).toMatch(REFUSED);
  });

  test("with an authority for clients, only clients with its certificates are served", async () => {
    await start({ credentials: new TlsCredentials(filesOf("server", authority.ca)) });
    expect(await outcome(channel(authority.ca))).toMatch(REFUSED);
    expect(await outcome(channel(authority.ca, other.issue("client", "DNS:client")))).toMatch(REFUSED);
    expect(await outcome(channel(authority.ca, authority.issue("client", "DNS:client")))).toBe("OK");
  });
});

describe("health", () => {
  test("is asked without a token, for the process and for each service", async () => {
    await start();
    for (const name of ["", "overlay.ipam.v1.Ipam", "overlay.ipam.v1.Reservations"])
      expect(await healthOf(service.address, name)).toBe("SERVING");
    expect(await healthOf(service.address, "nosuch")).toBe("NOT_FOUND");
  });
});

const health = loadSync(require.resolve("grpc-health-check/proto/health/v1/health.proto"), { enums: String })[
  "grpc.health.v1.Health"
] as ServiceDefinition;

function healthOf(address: string, name: string): Promise<string> {
  const client = new Client(address, credentials.createInsecure());
  const { path, requestSerialize, responseDeserialize } = health.Check!;
  return new Promise((resolve) => {
    client.makeUnaryRequest(
      path,
      requestSerialize,
      responseDeserialize,
      { service: name },
      (error: ServiceError | null, answer?: object) => {
        client.close();
        resolve(error ? status[error.code]! : (answer as { status: string }).status);
      },
    );
  });
}

function healthWatch(address: string): { client: Client; statuses: string[] } {
  const client = new Client(address, credentials.createInsecure());
  const { path, requestSerialize, responseDeserialize } = health.Watch!;
  const statuses: string[] = [];
  const stream = client.makeServerStreamRequest(path, requestSerialize, responseDeserialize, { service: "" });
  stream.on("data", (answer: { status: string }) => statuses.push(answer.status));
  stream.on("error", () => {});
  return { client, statuses };
}

/** A client that has no .proto file of ours, as grpcurl. */
describe.each(["v1", "v1alpha"])("reflection %s", (version) => {
  const reflection = () =>
    loadSync(require.resolve(`@grpc/reflection/build/proto/grpc/reflection/${version}/reflection.proto`), {
      longs: String,
      enums: String,
    })[`grpc.reflection.${version}.ServerReflection`] as ServiceDefinition;

  function ask(address: string, request: object): Promise<Answer> {
    const client = new Client(address, credentials.createInsecure());
    const { path, requestSerialize, responseDeserialize } = reflection().ServerReflectionInfo!;
    const stream = client.makeBidiStreamRequest(path, requestSerialize, responseDeserialize);
    return new Promise((resolve, reject) => {
      stream.on("data", resolve);
      stream.on("error", reject);
      stream.write(request);
      stream.end();
    }).finally(() => client.close());
  }

  test("lists the services, and its descriptors suffice for a call", async () => {
    await start();
    const { listServicesResponse } = await ask(service.address, { listServices: "*" });
    expect(listServicesResponse.service.map(({ name }: { name: string }) => name).sort()).toEqual([
      "grpc.health.v1.Health",
      "overlay.ipam.v1.Ipam",
      "overlay.ipam.v1.Reservations",
    ]);
    // protobufjs reads a map from a descriptor as a list of entries, which is the same in a message.
    const details = await ask(service.address, { fileContainingSymbol: "google.rpc.ErrorInfo" });
    expect(details.fileDescriptorResponse.fileDescriptorProto).toHaveLength(2); // and that of google.protobuf.Any
    const symbol = { fileContainingSymbol: "overlay.ipam.v1.Ipam" };
    const { fileDescriptorResponse } = await ask(service.address, symbol);
    const files = toFileSet(fileDescriptorResponse.fileDescriptorProto);
    const ipam = loadFileDescriptorSetFromBuffer(files, { longs: String, enums: String })[
      "overlay.ipam.v1.Ipam"
    ] as ServiceDefinition;
    const { path, requestSerialize, responseDeserialize } = ipam.AllocateIP!;
    const { client } = service.connect();
    const request = { service_uid: "u1", pool: "web", labels: [{ key: "via", value: "reflection" }] };
    const metadata = new Metadata();
    metadata.set("authorization", `Bearer ${admin}`);
    const answer = await new Promise((resolve, reject) =>
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, request, metadata, (error, value) =>
        error ? reject(error) : resolve(value),
      ),
    );
    expect(answer).toMatchObject({
      service_uid: "u1",
      lease: { ip: "172.20.7.0", labels: [{ key: "via", value: "reflection" }], state: "LEASE_STATE_RESERVED" },
    });
  });
});

function toFileSet(files: Buffer[]): Buffer {
  const descriptors = loadSync("google/protobuf/descriptor.proto", { longs: String, enums: String });
  const typeOf = (name: string) =>
    descriptors[`google.protobuf.${name}`] as unknown as MessageTypeDefinition<object, object>;
  return typeOf("FileDescriptorSet").serialize({
    file: files.map((bytes) => typeOf("FileDescriptorProto").deserialize(bytes)),
  });
}
