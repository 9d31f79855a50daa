import { hash } from "node:crypto";
import { expect, test } from "vitest";
import { readDeclared } from "../../../provider/lifecycle/declared";
import { extents } from "../../contract/fixture";
import { ownerOf } from "./stage";

const mark = (type: string, name: string) => hash("sha256", `${type}::${name}`, "hex").slice(0, 8);
const [a, runner] = [mark("IPReservation", "a"), mark("RunnerSubnet", "r")];

test.each([
  ["it is not declared", `${runner}=7`, "a", ["10.0.0.1"], false],
  ["it leaves the choice to the pool, and so keeps what it has", a, "a", ["10.0.0.1"], false],
  ["it asks for what it has", `${a}=10.0.0.1`, "a", ["10.0.0.1"], false],
  ["it asks for what it has, written in another way", `${a}=FD00:0::1`, "a", ["fd00::1"], false],
  ["it asks for another one", `${runner}=7 ${a}=10.0.0.2`, "a", ["10.0.0.1"], true],
  ["it asks for one of two", `${a}=10.0.0.2=fd00::1`, "a", ["10.0.0.1", "fd00::1"], false],
  ["what it asks for is an output", `${a}=?`, "a", ["10.0.0.1"], undefined],
  ["one of the same name in another component keeps it", `${a}=10.0.0.2 ${a}=10.0.0.1`, "a", ["10.0.0.1"], false],
])("a resource of the stack gives up its values or not: %s", (_, text, name, held, expected) => {
  const holder = { owner: ownerOf("IPReservation", name), extents: extents(...held) };
  expect(readDeclared(text)(holder)).toBe(expected);
});

test("a runner that asks for another id gives up its own", () => {
  const movesAway = readDeclared(`${runner}=7`);
  expect(movesAway({ owner: ownerOf("RunnerSubnet", "r"), extents: extents("6") })).toBe(true);
  expect(movesAway({ owner: ownerOf("RunnerSubnet", "r"), extents: extents("7") })).toBe(false);
});
