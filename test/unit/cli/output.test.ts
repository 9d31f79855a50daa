import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Output } from "../../../cli/output";

let printed: string;
beforeEach(() => {
  printed = "";
  vi.spyOn(process.stdout, "write").mockImplementation((text) => {
    printed += text;
    return true;
  });
});
afterEach(() => {
  vi.restoreAllMocks();
});

const rows = [
  { ip: "10.0.0.1", state: "used", by: "web", extra: [1] },
  { ip: "10.0.0.10", state: "reserved", by: undefined, extra: [2] },
];

test("a list is printed as a table without empty columns", () => {
  new Output(false, false).list(rows, ["ip", "state", "by"]);
  expect(printed).toBe("ip         state     by\n10.0.0.1   used      web\n10.0.0.10  reserved\n");
});

test("colours do not move columns", () => {
  new Output(false, true).list(rows, ["ip", "state"]);
  const lines = [
    "\u001b[2mip       \u001b[0m  \u001b[2mstate   \u001b[0m",
    "10.0.0.1   \u001b[32mused\u001b[0m",
    "10.0.0.10  \u001b[36mreserved\u001b[0m",
  ];
  expect(printed.split("\n").map((line) => line.trimEnd())).toEqual([...lines, ""]);
});

test("--json prints all fields, one object per line, without colours and notes", () => {
  const out = new Output(true, true);
  out.list(rows, ["ip"]);
  out.one({ state: "used" });
  out.say("for people");
  expect(printed).toBe(`${JSON.stringify(rows[0])}\n${JSON.stringify(rows[1])}\n{"state":"used"}\n`);
});

test("an empty list prints nothing", () => {
  new Output(false, false).list([] as { a: string }[], ["a"]);
  expect(printed).toBe("");
});
