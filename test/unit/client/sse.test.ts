import { expect, test } from "vitest";
import { type Block, BlockParser } from "../../../client/sse";

/** Each text is given whole, byte by byte, and cut in two at every place: the blocks are the same. */
const STREAMS: [name: string, text: string, blocks: Block[]][] = [
  ["an event", 'id: 7\nevent: claimed\ndata: {"a":1}\n\n', [{ id: "7", event: "claimed", data: '{"a":1}' }]],
  [
    "a first block with the time before the next connection, and a heartbeat",
    "retry: 1000\nid: 3\n\n: heartbeat\nid: 9\n\n",
    [
      { id: "3", event: "message", data: "", retry: 1000 },
      { id: "9", event: "message", data: "" },
    ],
  ],
  [
    "data of several lines, without a blank after the colon",
    "data:a\ndata: b\n\n",
    [{ id: "", event: "message", data: "a\nb" }],
  ],
  [
    "the id stays until the next one",
    "id: 1\ndata: a\n\ndata: b\n\n",
    [
      { id: "1", event: "message", data: "a" },
      { id: "1", event: "message", data: "b" },
    ],
  ],
  ["line ends of Windows", "id: 1\r\ndata: a\r\n\r\n", [{ id: "1", event: "message", data: "a" }]],
  ["a field without a colon, and an unknown one", "data\nfoo: bar\n\n", [{ id: "", event: "message", data: "" }]],
  ["a time that is no number", "retry: soon\n\n", [{ id: "", event: "message", data: "" }]],
  ["an incomplete block", "id: 1\ndata: a\n", []],
];

function parse(pieces: string[]): Block[] {
  const parser = new BlockParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

test.each(STREAMS)("%s", (_, text, blocks) => {
  expect(parse([text])).toEqual(blocks);
  expect(parse([...text])).toEqual(blocks);
  for (let at = 0; at <= text.length; at++) expect(parse([text.slice(0, at), text.slice(at)])).toEqual(blocks);
});

test("characters of an incomplete block are counted", () => {
  const parser = new BlockParser();
  parser.push("data: a\n\ndata: ");
  parser.push("bcd");
  expect(parser.pending).toBe(9);
});
