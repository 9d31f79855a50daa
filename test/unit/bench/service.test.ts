import { expect, test } from "vitest";
import { parseAnswer } from "../../../bench/service/connection";
import { summarizeLatencies } from "../../../bench/service/latencies";
import { LinearSearch } from "../../../bench/service/linear-search";

const HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n";

test.each([
  ["a whole answer", `${HEAD}{"a":1}`, { status: 200, body: '{"a":1}' }],
  ["an answer without a body", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", { status: 204, body: "" }],
  ["an incomplete body", `${HEAD}{"a"`, undefined],
  ["incomplete headers", HEAD.slice(0, 30), undefined],
])("%s is parsed", (_, received, answer) => {
  expect(parseAnswer(Buffer.from(received))).toEqual(answer);
});

test("the length of an answer is in bytes", () => {
  expect(parseAnswer(Buffer.from("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n€!"))).toEqual({
    status: 200,
    body: "€!",
  });
});

test("an answer without a length is an error", () => {
  const received = Buffer.from("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
  expect(parseAnswer(received)).toBeInstanceOf(Error);
});

test.each([
  [[5], { p50: 5, p99: 5, max: 5 }],
  [[10, 9, 1, 2], { p50: 2, p99: 10, max: 10 }],
  [Array.from({ length: 200 }, (_, i) => 200 - i), { p50: 100, p99: 198, max: 200 }],
])("latencies are summarized: %j", (latencies, summary) => {
  expect(summarizeLatencies(latencies)).toEqual(summary);
});

/** 10.0.0.2 to 10.0.0.4. */
const newSearch = () => new LinearSearch(0x0a00_0002, 0x0a00_0004, "secret");

test("a linear search gives every address once, then none", () => {
  const search = newSearch();
  const given = Array.from({ length: 3 }, () => search.reserve(300).ip);
  expect(given.sort()).toEqual(["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
  expect(() => search.reserve(300)).toThrow("no address is free");
});

test("a token is used once, and its container releases the address", () => {
  const search = newSearch();
  const { ip, token } = search.reserve(300);
  expect(search.use(token, "web")).toBe(ip);
  expect(() => search.use(token, "other")).toThrow();
  expect(search.release("other")).toEqual([]);
  expect(search.release("web")).toEqual([ip]);
});

test.each(["", "constant", Buffer.alloc(40).toString("base64url")])("the forged token '%s' is refused", (token) => {
  expect(() => newSearch().use(token, "web")).toThrow();
});

test("what is not used expires", () => {
  const search = newSearch();
  const { token } = search.reserve(10, 1000);
  for (let i = 0; i < 2; i++) search.reserve(10, 1000);
  search.use(token, "web");
  expect([search.reserve(10, 12_000), search.reserve(10, 12_000)]).toHaveLength(2);
  expect(() => search.reserve(10, 12_000)).toThrow("no address is free");
});
