import { expect, test } from "vitest";
import { parseAnswer } from "../../../bench/service/connection";
import { summarizeLatencies } from "../../../bench/service/latencies";

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
