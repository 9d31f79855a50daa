import { afterEach, expect, test, vi } from "vitest";

afterEach(() => vi.unstubAllEnvs());

/** What `check` answers or throws, by a provider process with this store. */
async function check(store: string): Promise<string> {
  vi.resetModules();
  vi.stubEnv("OVERLAY_STORE", store);
  const { provider } = await import("../../provider/runtime.js");
  const owner = "organization/urn:pulumi:dev::p::pulumi-nodejs:dynamic/overlay:IPPool::web";
  const answer = provider("IPPool").check({}, { owner, dryRun: true, ranges: ["10.0.0.0/24"] });
  return answer.then(JSON.stringify, ({ message }: Error) => message);
}

test("a store that does not exist is named before the scope that a shared store needs", async () => {
  expect(await check("psotgres://host/db")).toMatch(/The store 'psotgres:' is not one of sqlite:/);
  expect(await check("postgres://host/db")).toMatch(/Set overlay:scope/);
});
