import { PassThrough } from "node:stream";
import { afterEach, expect, test, vi } from "vitest";
import { printError } from "../../cli/command";
import { Output } from "../../cli/output";
import { OverlayError } from "../../provider/errors";
import { readCredentials } from "../../provider/host/ssh/dial";
import { Frames } from "../../provider/host/ssh/shell";
import { MAX_ANSWER_BYTES } from "../../provider/host/ssh/shell-errors";
import { parseDocker } from "../../provider/network/kinds/docker";
import { containerOwner, isStackOwner } from "../../provider/owner";
import { readSettings } from "../../provider/settings";
import { Stage } from "./lifecycle/stage";

/** Text of hosts and stores reaches terminals and this process's memory. */
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

const ESCAPE = "a\u001b]0;evil\u0007\u009b2J\u202eb";
const HARMLESS = "a\\u001b]0;evil\\u0007\\u009b2J\\u202eb";

test("control characters are escaped in errors", () => {
  const error = new OverlayError("HOST_COMMAND_FAILED", `It said ${ESCAPE}.`, "Look.");
  expect(error.message).toBe(`HOST_COMMAND_FAILED: It said ${HARMLESS}. Look.`);
  expect(error.what).toBe(`It said ${HARMLESS}.`);
});

test.each([true, false])("control characters are escaped in tables and notes, with --json %s", (json) => {
  const said: string[] = [];
  vi.spyOn(process.stdout, "write").mockImplementation((text) => said.push(String(text)) > 0);
  vi.spyOn(process.stderr, "write").mockImplementation((text) => said.push(String(text)) > 0);
  const out = new Output(json, false);
  out.list([{ owner: ESCAPE, labels: { a: ESCAPE } }], ["owner", "labels"]);
  out.one({ owner: `${ESCAPE}\nforged line` });
  out.note(ESCAPE);
  expect(said.join("")).not.toMatch(/(?!\n)[\p{Cc}\u202e]/u);
  expect(said.join("")).not.toMatch(/^forged/m);
});

test("control characters are escaped in text output and in JSON errors", () => {
  const said: string[] = [];
  vi.spyOn(process.stdout, "write").mockImplementation((text) => said.push(String(text)) > 0);
  vi.spyOn(process.stderr, "write").mockImplementation((text) => said.push(String(text)) > 0);
  new Output(false, false).say(ESCAPE);
  const { exitCode } = process;
  printError(new OverlayError("POOL_NOT_FOUND", ESCAPE, ESCAPE), true);
  process.exitCode = exitCode;
  expect(said.join("")).not.toMatch(/(?!\n)[\p{Cc}\u202e]/u);
  expect(JSON.parse(said[1]!)).toMatchObject({ error: "POOL_NOT_FOUND", fix: ESCAPE });
});

test("drift with text of a host cannot control a terminal or forge a line", async () => {
  const stage = await Stage.up();
  const props = await stage.network();
  const foreign = [`${ESCAPE}\nerror: forged`];
  const seen = { differences: [], foreign, neighbours: [], containers: [], tunnels: [], peerMoves: false };
  stage.fleet.inspect = async () => seen;
  expect((await stage.of("OverlayNetwork").read("training", props)).props.drift).toEqual([
    `192.0.2.1: ${HARMLESS}\\nerror: forged`,
  ]);
  stage.fleet.apply = async () => seen;
  const { inputs } = await stage.check("OverlayNetwork", "other", {
    hubConnection: { host: "192.0.2.2" },
    subnets: "10.16.0.0/12/6/14",
  });
  const made = await stage.of("OverlayNetwork").create(inputs);
  expect(made.props.drift).toEqual([`192.0.2.2: ${HARMLESS}\\nerror: forged`]);
  expect(stage.warnings).toEqual([
    `drift of OverlayNetwork training: 192.0.2.1: ${HARMLESS}\\nerror: forged`,
    `192.0.2.2: ${HARMLESS}\\nerror: forged`,
  ]);
});

test("the names of a host's containers and networks are one line without control characters", () => {
  const network = { Name: ESCAPE, Containers: { a: { Name: `${ESCAPE}\nerror: forged` } } };
  const { networks } = parseDocker(JSON.stringify([network]))!;
  expect(networks).toMatchObject([{ name: HARMLESS, containers: [{ name: `${HARMLESS}\\nerror: forged` }] }]);
});

test("a container that is named like a resource of a stack belongs to no stack", () => {
  const urn = "urn:pulumi:dev::shop::overlay:index:IPReservation::web";
  expect(isStackOwner(`acme/${urn}`)).toBe(true);
  expect(isStackOwner(`forgotten/acme/${urn}`)).toBe(true);
  expect(isStackOwner(containerOwner("training", "r1", urn))).toBe(false);
  expect(isStackOwner(containerOwner("training", "r1", `acme/${urn}`))).toBe(false);
});

test("a secret in the place of its file's name is not shown", async () => {
  vi.stubEnv("OVERLAY_STORE_FILE", "postgres://me:hunter2@db/overlay");
  expect(() => readSettings(() => undefined)).toThrow(
    /^SETTING_INVALID: OVERLAY_STORE_FILE names a file that cannot be read \(ENOENT\)\. (?!.*hunter2)/,
  );
  const privateKeyPath = "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----";
  await expect(readCredentials({ host: "192.0.2.1", privateKeyPath })).rejects.toThrow(
    /^SSH_AUTH: privateKeyPath for root@192\.0\.2\.1 is the text of a key(?!.*hunter2)/s,
  );
});

test("a host that sends more than 64 MiB is disconnected, and little of it is kept", async () => {
  const stream = new PassThrough();
  let overflows = 0;
  const frames = new Frames(stream, "mark", () => overflows++);
  const chunk = Buffer.alloc(1 << 20, "x");
  const next = frames.next();
  for (let i = 0; i < MAX_ANSWER_BYTES / chunk.length + 3; i++) stream.write(chunk);
  expect(await next).toEqual({ text: "", word: undefined });
  expect(overflows).toBe(1);
});

test("many answers together may be larger than one", async () => {
  const stream = new PassThrough();
  const frames = new Frames(stream, "mark", () => expect.unreachable());
  for (let i = 0; i < 3; i++) {
    stream.write(Buffer.alloc(MAX_ANSWER_BYTES / 2, "x"));
    stream.write("\nmark 0\n");
    expect((await frames.next()).text.length).toBe(MAX_ANSWER_BYTES / 2 + 1);
  }
});

test.each(["docker", "forgotten", "service", "overlayctl", "Tenant", "a/b", "a\nb", ""])(
  "the scope %j is refused",
  (scope) => {
    expect(() => readSettings((key) => (key === "scope" ? scope : undefined))).toThrow(/^SETTING_INVALID: .*scope/);
  },
);
