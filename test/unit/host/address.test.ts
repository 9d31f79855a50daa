import { expect, test } from "vitest";
import { connectionKey, connectionName, isSameConnection } from "../../../provider/host/connection";

test.each([
  [{ host: "10.0.0.1" }, "10.0.0.1"],
  [{ host: "10.0.0.1", port: 22 }, "10.0.0.1"],
  [{ host: "10.0.0.1", port: 2222 }, "10.0.0.1:2222"],
  [{ host: "fd00::1" }, "fd00::1"],
  [{ host: "fd00::1", port: 2222 }, "[fd00::1]:2222"],
])("%o is called %s", (connection, name) => {
  expect(connectionName(connection)).toBe(name);
});

test.each([
  ["the default user and port", { host: "a" }, { host: "A", user: "root", port: 22 }, true],
  ["other credentials", { host: "a", password: "1" }, { host: "a", privateKey: "2" }, true],
  ["another user", { host: "a" }, { host: "a", user: "alice" }, false],
  ["another port", { host: "a" }, { host: "a", port: 2222 }, false],
  ["a jump host", { host: "a" }, { host: "a", proxy: { host: "j" } }, false],
  ["another jump host", { host: "a", proxy: { host: "i" } }, { host: "a", proxy: { host: "j" } }, false],
])("%s: one connection is shared or not", (_, a, b, shared) => {
  expect(connectionKey(a) === connectionKey(b)).toBe(shared);
});

test.each([
  [{ host: "a", port: 22 }, { port: 22, host: "a" }, true],
  [{ host: "a", password: undefined }, { host: "a" }, true],
  [{ host: "a", password: "1" }, { host: "a" }, false],
  [{ host: "a", proxy: { host: "j", port: 1 } }, { host: "a", proxy: { port: 1, host: "j" } }, true],
])("%o and %o are the same: %s", (a, b, same) => {
  expect(isSameConnection(a, b)).toBe(same);
});
