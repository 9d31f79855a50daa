import { hash } from "node:crypto";
import { expect, test } from "vitest";
import { readDeclared } from "../../../provider/lifecycle/declared";
import { ranges } from "../../contract/fixture";
import { ownerOf } from "./stage";

const pool = "pool/p";

const mark = (type: string, name: string) => hash("sha256", `${type}::${name}`, "hex").slice(0, 8);
const [a, runner] = [mark("IPReservation", "a"), mark("RunnerSubnet", "r")];

test.each([
  ["it is not declared", `${runner}=7`, "a", ["10.0.0.1"], false],
  ["it requests no value, and so keeps its own", a, "a", ["10.0.0.1"], false],
  ["it requests its own value", `${a}=10.0.0.1`, "a", ["10.0.0.1"], false],
  ["it requests its own value, in another notation", `${a}=FD00:0::1`, "a", ["fd00::1"], false],
  ["it requests another value", `${runner}=7 ${a}=10.0.0.2`, "a", ["10.0.0.1"], true],
  ["it requests one of its two values", `${a}=10.0.0.2=fd00::1`, "a", ["10.0.0.1", "fd00::1"], false],
  ["the requested value is an output", `${a}=?`, "a", ["10.0.0.1"], undefined],
  [
    "a resource of the same name in another component keeps it",
    `${a}=10.0.0.2 ${a}=10.0.0.1`,
    "a",
    ["10.0.0.1"],
    false,
  ],
])("whether a resource of the stack releases its values: %s", (_, text, name, held, expected) => {
  const holder = { pool, owner: ownerOf("IPReservation", name), ranges: ranges(...held) };
  expect(readDeclared(text).movesAway(holder)).toBe(expected);
});

test("a runner that requests another id releases its own", () => {
  const { movesAway } = readDeclared(`${runner}=7`);
  expect(movesAway({ pool, owner: ownerOf("RunnerSubnet", "r"), ranges: ranges("6") })).toBe(true);
  expect(movesAway({ pool, owner: ownerOf("RunnerSubnet", "r"), ranges: ranges("7") })).toBe(false);
});

test("whether a range moves is not known: ranges are not declared", () => {
  const range = { pool: "space/default", owner: ownerOf("IPPool", "p"), ranges: ranges("10.0.0.0/24") };
  expect(readDeclared(`${a}=10.0.0.1`).movesAway(range)).toBeUndefined();
});

test("the requested values: ids and ports, IPv4 and IPv6 addresses, each once; no outputs, and nothing that is no value", () => {
  const other = mark("IPReservation", "b");
  const text = `${runner}=7 ${a}=10.0.0.1=FD00:0::1 ${other}=? ${other}=10.0.0.1=10.0.0.300=1234567890=1e9= nohash=8 ${other}`;
  expect(readDeclared(text).declared).toEqual(ranges("7", "10.0.0.1", "fd00::1"));
});
