import { PassThrough } from "node:stream";
import { afterEach, expect, test, vi } from "vitest";
import { Output } from "../../provider/cli/output";
import { OverlayError } from "../../provider/errors";
import { Frames, LARGEST_ANSWER } from "../../provider/host/frames";
import { readSettings } from "../../provider/settings";

/** What hosts and stores say reaches people's terminals and this process's memory. */
afterEach(() => {
  vi.restoreAllMocks();
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

test("a host that says more than 64 MiB is cut off, and little of it is kept", async () => {
  const stream = new PassThrough();
  let overflows = 0;
  const frames = new Frames(stream, "mark", () => overflows++);
  const chunk = Buffer.alloc(1 << 20, "x");
  const next = frames.next();
  for (let i = 0; i < LARGEST_ANSWER / chunk.length + 3; i++) stream.write(chunk);
  expect(await next).toEqual({ text: "", word: undefined });
  expect(overflows).toBe(1);
});

test("many answers together may be larger than one", async () => {
  const stream = new PassThrough();
  const frames = new Frames(stream, "mark", () => expect.unreachable());
  for (let i = 0; i < 3; i++) {
    stream.write(Buffer.alloc(LARGEST_ANSWER / 2, "x"));
    stream.write("\nmark 0\n");
    expect((await frames.next()).text.length).toBe(LARGEST_ANSWER / 2 + 1);
  }
});

test.each(["docker", "forgotten", "service", "overlayctl", "Tenant", "a/b", "a\nb", ""])(
  "the scope %j is refused",
  (scope) => {
    expect(() => readSettings((key) => (key === "scope" ? scope : undefined))).toThrow(/^SETTING_INVALID: .*scope/);
  },
);
