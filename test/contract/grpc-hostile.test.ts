import { afterAll, beforeAll, expect, test } from "vitest";
import { openIpam, type Store } from "../../provider/ipam";
import { SERVICE_NAMES, serviceDefinition } from "../../service/grpc/api";
import { deploy } from "../unit/cli/ctl";
import { fillStore, MESSAGES } from "../unit/service/hostile-requests";
import { longestTurn } from "../unit/service/longest-turn";
import { type Connection, GrpcService } from "./grpc-service";

/** Valid messages with as much in them as there may be, to every method. */
let pool: Store;
let service: GrpcService;
let client: Connection;
let token: string;

beforeAll(async () => {
  pool = await openIpam("memory:", { offerTtl: 600, quarantine: 0, actor: "test" });
  await deploy(pool, ["node1"]);
  await fillStore(pool, 3000);
  service = await GrpcService.on(pool);
  client = service.connect();
  token = await service.token("all", ["admin"]);
}, 60_000);
afterAll(async () => {
  await service.stop();
  await pool.end();
});

/** Milliseconds, as in `unit/service/hostile.test.ts`. The client runs in the same process. */
const MOST_HELD = 150;

test("every method has such a message", () => {
  const methods = SERVICE_NAMES.flatMap((name) => Object.keys(serviceDefinition(name)).map((key) => `${name}.${key}`));
  expect(Object.keys(MESSAGES).sort()).toEqual(methods.sort());
});

test.each(
  Object.entries(MESSAGES).flatMap(([method, samples]) =>
    samples.map(([name, message]) => [method, name, message] as const),
  ),
)("%s with %s holds the event loop briefly", async (method, _, message) => {
  let outcome = "";
  let held = Number.POSITIVE_INFINITY;
  for (let tries = 0; tries < 3 && held > MOST_HELD; tries++)
    held = Math.min(held, await longestTurn(async () => (outcome = await client.outcome(method, message, token))));
  expect(outcome).not.toMatch(/^INTERNAL|^UNKNOWN|INPUT_INVALID/);
  expect(held).toBeLessThan(MOST_HELD);
});
