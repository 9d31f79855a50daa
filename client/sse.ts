/** Server-sent events (WHATWG HTML 9.2): the text of a stream, as blocks. */

export interface Block {
  /** The last id that the stream has named. */
  id: string;
  event: string;
  /** Empty: no event, only a new id. */
  data: string;
  /** Milliseconds, if the stream names how long to wait before the next connection. */
  retry?: number;
}

/** Cuts text that arrives in any pieces into blocks. */
export class BlockParser {
  #rest = "";
  #id: string;

  constructor(id = "") {
    this.#id = id;
  }

  /** Characters of the block that is not complete yet. */
  get pending(): number {
    return this.#rest.length;
  }

  /** The blocks that are complete with this piece. */
  push(piece: string): Block[] {
    this.#rest += piece;
    const blocks: Block[] = [];
    for (let end = BLOCK_END.exec(this.#rest); end; end = BLOCK_END.exec(this.#rest)) {
      blocks.push(this.#parse(this.#rest.slice(0, end.index)));
      this.#rest = this.#rest.slice(end.index + end[0].length);
    }
    return blocks;
  }

  #parse(text: string): Block {
    const fields = text.split(LINE_END).map(parseField);
    const lastOf = (name: string) => fields.findLast((field) => field.name === name)?.value;
    this.#id = lastOf("id") ?? this.#id;
    const retry = lastOf("retry");
    return {
      id: this.#id,
      event: lastOf("event") ?? "message",
      data: fields
        .filter(({ name }) => name === "data")
        .map(({ value }) => value)
        .join("\n"),
      ...(retry !== undefined && /^\d{1,9}$/.test(retry) && { retry: Number(retry) }),
    };
  }
}

/** A carriage return at the end of a piece may be the first half of a line end. */
const BLOCK_END = /(\r\n|\n|\r(?!\n|$)){2}/;
const LINE_END = /\r\n|\n|\r/;

/** A line that begins with a colon is a comment: a field without a name. */
function parseField(line: string): { name: string; value: string } {
  const colon = line.indexOf(":");
  if (colon < 0) return { name: line, value: "" };
  return { name: line.slice(0, colon), value: line.slice(colon + 1).replace(/^ /, "") };
}
