import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { type PlannedStep, Workspace } from "./stack";

/** Up gives the values that preview shows, with many resources and with other stacks on the same pool. */
const MANY = 40;
let lab: Lab;
let workspace: Workspace;

beforeAll(async () => {
  lab = await Lab.up({ runners: MANY + 2 });
  workspace = new Workspace(lab);
});

afterAll(async () => {
  await lab?.down();
  workspace?.remove();
});

const subnets = (steps: PlannedStep[]): Record<string, unknown> =>
  Object.fromEntries(
    steps
      .filter(({ type, op }) => type === "RunnerSubnet" && op === "create")
      .map(({ name, inputs }) => [name, [inputs.runnerId, inputs.subnet]]),
  );

test("two previews and the up after them agree on 40 new runners, while another stack takes addresses in between", async () => {
  const [main, other] = [await workspace.stack("main"), await workspace.stack("other", { project: "other" })];
  const network = `const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });`;
  main.program(network);
  await main.mustUp();
  main.program(
    `${network} for (let i = 1; i <= ${MANY}; i++) new overlay.RunnerSubnet("r" + i, { network, connection: at("r" + i) });`,
  );
  const first = subnets(await main.preview());
  expect(Object.keys(first)).toHaveLength(MANY);

  other.program(
    `for (const name of ["r41", "r42"]) new overlay.RunnerSubnet(name, { network: "training", connection: at(name), hubConnection: at("hub") });`,
  );
  await other.mustUp();
  const taken = Object.values(await other.state()).map(({ outputs }) => outputs.runnerId);
  const promised = Object.values(first).map((value) => (value as unknown[])[0]);
  expect(taken.filter((id) => promised.includes(id))).toEqual([]);

  expect(subnets(await main.preview())).toEqual(first);
  main.trace();
  await main.mustUp();
  const given = Object.entries(await main.state()).filter(([name]) => name !== "training");
  expect(Object.fromEntries(given.map(([name, { outputs }]) => [name, [outputs.runnerId, outputs.subnet]]))).toEqual(
    first,
  );

  const hub = main.trace().filter(({ conversation }) => conversation?.host === lab.host("hub").address);
  expect(hub.length).toBeLessThan(MANY);
  await other.destroy();
  await main.destroy();
});
