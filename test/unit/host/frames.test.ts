import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { Frames } from "../../../provider/host/ssh/shell";

const MARK = "overlay-0123456789abcdef";

test.each<[string, string[], [string, string | undefined][]]>([
  ["one frame", [`out\n${MARK} 0\n`], [["out\n", "0"]]],
  ["text without a newline at its end", [`out${MARK} 0\n`], [["out", "0"]]],
  ["no text", [`${MARK} 0\n`], [["", "0"]]],
  [
    "two frames in one chunk",
    [`a${MARK} 0\nb${MARK} 1\n`],
    [
      ["a", "0"],
      ["b", "1"],
    ],
  ],
  ["a marker cut in two", ["out over", "lay-0123456789abcdef 12", "7\n"], [["out ", "127"]]],
  ["a marker cut before its newline", [`out ${MARK}`, " 0", "\n"], [["out ", "0"]]],
  ["what only looks like a marker", [`overlay-0123\n${MARK} 0\n`], [["overlay-0123\n", "0"]]],
  ["a character cut in two", ["\xc3", "\xa4", `${MARK} 0\n`], [["ä", "0"]]],
  [
    "an end without a marker",
    [`a${MARK} 0\nlast words`],
    [
      ["a", "0"],
      ["last words", undefined],
      ["last words", undefined],
    ],
  ],
])("%s", async (_, chunks, expected) => {
  const stream = new PassThrough();
  const frames = new Frames(stream, MARK);
  const asked = [frames.next()];
  for (const chunk of chunks) stream.write(Buffer.from(chunk, "latin1"));
  stream.end();
  for (const _ of expected.slice(1)) asked.push(frames.next());
  expect((await Promise.all(asked)).map(({ text, word }) => [text, word])).toEqual(expected);
});

test("any cut of the stream gives the same frames", async () => {
  const text = `noise\n${MARK} ready\nout${MARK} 0\n${MARK} 255\n`;
  for (let at = 0; at <= text.length; at++) {
    const stream = new PassThrough();
    const frames = new Frames(stream, MARK);
    stream.write(text.slice(0, at));
    stream.end(text.slice(at));
    const three = await Promise.all([frames.next(), frames.next(), frames.next()]);
    expect(three).toEqual([
      { text: "noise\n", word: "ready" },
      { text: "out", word: "0" },
      { text: "", word: "255" },
    ]);
  }
});

test("thirty megabytes in small chunks take no longer than they must", async () => {
  const stream = new PassThrough({ highWaterMark: 1 << 30 });
  const frames = new Frames(stream, MARK);
  const chunk = Buffer.alloc(4096, "x");
  for (let left = 7500; left > 0; left--) stream.write(chunk);
  stream.write(`${MARK} 0\n`);
  expect((await frames.next()).text.length).toBe(7500 * 4096);
});
