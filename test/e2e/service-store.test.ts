import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { openIpam } from "../../provider/ipam";
import { historyOf } from "../../provider/ipam/interface";
import { type LabService, startLabService } from "./lab-service";
import { Stack, Workspace } from "./stack";

/** A stack whose store is a service, over HTTPS: first with a token for previews, then with one for deployments. Tests build on each other. */
let lab: Lab;
let workspace: Workspace;
let service: LabService;
let [preview, deploy]: (Stack | undefined)[] = [];
let secrets: string[];

const PROGRAM = `
  const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
  const runner = new overlay.RunnerSubnet("r1", { network, connection: at("r1") });
  const pool = new overlay.IPPool("web", { ranges: ["10.61.0.0/24"] });
  const first = new overlay.IPReservation("first", { pool });
  const second = new overlay.IPReservation("second", { pool, ip: "10.61.0.7" });
  const job = new overlay.IPReservation("job", { runner, ttl: true });
  return { ip: first.ip, token: job.token };
`;

const createToken = async (name: string, scope: string): Promise<string> => {
  const text = await workspace.overlayctl("access", "create", name, "--scope", scope, "--json");
  return JSON.parse(text).token;
};

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  workspace = new Workspace(lab);
  service = await startLabService(lab, workspace.store);
  secrets = [await createToken("ci-fork", "preview"), await createToken("ci", "deploy")];
  const env = (token: string) => ({
    OVERLAY_STORE: service.store,
    OVERLAY_STORE_TOKEN: token,
    OVERLAY_SCOPE: "e2e",
    OVERLAY_ACTOR: "ann@laptop",
  });
  preview = await workspace.stack("dev", { env: env(secrets[0]!) });
  preview.program(PROGRAM);
  deploy = new Stack(workspace, "dev", "e2e", env(secrets[1]!)); // the same stack, with another token
});

afterAll(async () => {
  await service?.stop();
  await lab?.down();
  workspace?.remove();
});

const COMPUTED = ["cidr", "hubIp", "subnet", "runnerId", "vni", "gateway", "ip", "ranges"];
const pick = (values: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(COMPUTED.filter((key) => values[key] !== undefined).map((key) => [key, values[key]]));

let shown: Record<string, Record<string, unknown>>;

test("with a token for previews, preview shows concrete values and contacts no host", async () => {
  const steps = await preview!.preview();
  shown = Object.fromEntries(steps.map(({ name, inputs }) => [name, pick(inputs)]));
  expect(shown).toMatchObject({
    training: { cidr: "10.128.0.0/12" },
    r1: { subnet: "10.128.64.0/18", gateway: "10.128.64.1" },
    first: { ip: expect.stringMatching(/^10\.61\.0\./) },
    second: { ip: "10.61.0.7" },
    job: { ip: expect.stringMatching(/^10\.128\./) },
  });
  expect(Stack.writes(preview!.trace())).toEqual({});
});

test("an up with it is refused before anything is changed", async () => {
  const { code, text } = await preview!.up();
  expect(code).not.toBe(0);
  expect(text).toContain("ACCESS_DENIED: Access token ci-fork may only preview: it may not change leases.");
  expect(text).toContain("Use a token with the scope deploy for up, refresh and destroy.");
  expect(Stack.writes(preview!.trace())).toEqual({});
  expect(await preview!.state()).toEqual({});
  const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
  const leases = await pool.leases("space/default").finally(() => pool.end());
  expect(leases.every(({ state }) => state === "offered")).toBe(true);
});

test("an up with a token for deployments gives exactly these values, and a second one changes nothing", async () => {
  await deploy!.mustUp();
  const given = Object.entries(await deploy!.state()).map(([name, { outputs }]) => [name, pick(outputs)]);
  expect(Object.fromEntries(given)).toEqual(shown);
  await deploy!.mustUp("--expect-no-changes");
  await deploy!.must("refresh", "--yes", "--stack", "dev", "--expect-no-changes", "--skip-preview");
  const { token } = await deploy!.outputs<{ token: string }>();
  expect(await workspace.overlayctl("ip", "validate", token, "--json")).toContain(String(shown.job!.ip));
});

test("with the token for previews, a preview shows no changes, also with refresh, and a destroy is refused", async () => {
  await preview!.must("preview", "--stack", "dev", "--expect-no-changes");
  await preview!.must("preview", "--refresh", "--stack", "dev", "--expect-no-changes");
  const { code, text } = await preview!.pulumi("destroy", "--yes", "--skip-preview", "--stack", "dev");
  expect(code).not.toBe(0);
  expect(text).toContain("ACCESS_DENIED: Access token ci-fork may only preview");
  await deploy!.mustUp("--expect-no-changes");
});

test("destroy leaves no lease, the history names token and user, and neither token is shown anywhere", async () => {
  await deploy!.destroy();
  const pool = await openIpam(workspace.store, { offerTtl: 3600, quarantine: 300 });
  const leases = await pool.leases("space/default");
  expect(leases.map(({ state }) => state)).toEqual(["quarantined", "quarantined"]); // of network and pool
  const history = await historyOf(pool, "space/default");
  expect(new Set(history.map(({ by }) => by))).toEqual(new Set(["ci (ann@laptop)"]));
  expect(await pool.admin.fsck()).toEqual([]);
  await pool.end();
  for (const stack of [preview!, deploy!])
    for (const secret of secrets) expect(await stack.reveals(secret)).toBe(false);
});
