import type { Readable } from "node:stream";

/** What a stream said up to a marker line, and the word on that line; no word: the stream ended instead. */
export interface Frame {
  text: string;
  word: string | undefined;
}

const LONGEST_WORD = 16;

/** Bytes that a host may say in answer to one command. */
export const LARGEST_ANSWER = 64 * 1024 * 1024;

/** Cuts a stream at its marker lines `MARK WORD`. A marker may follow text that has no newline at its end. */
export class Frames {
  #held: Buffer[] = [];
  #tail: Buffer = Buffer.alloc(0);
  #ended = false;
  readonly #cut: Frame[] = [];
  readonly #waiting: ((frame: Frame) => void)[] = [];

  #size = 0;

  /** `overflow` is called once, when a host says more than it may; nothing is kept from then on. */
  constructor(
    stream: Readable,
    private readonly mark: string,
    private readonly overflow: () => void = () => {},
  ) {
    stream.on("data", (chunk: Buffer) => this.#push(chunk));
    stream.once("end", () => this.end());
  }

  /** The next frame, in order; callers that ask before it is there are served in the order in which they asked. */
  next(): Promise<Frame> {
    const frame = this.#cut.shift();
    if (this.#cut.length === 0) this.#size = this.#held.reduce((sum, { length }) => sum + length, 0);
    if (frame) return Promise.resolve(frame);
    if (this.#ended) return Promise.resolve(this.#rest());
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  end(): void {
    this.#ended = true;
    for (const resolve of this.#waiting.splice(0)) resolve(this.#rest());
  }

  #rest(): Frame {
    return { text: Buffer.concat(this.#held).toString("utf8"), word: undefined };
  }

  #push(chunk: Buffer): void {
    if (this.#ended) return;
    this.#size += chunk.length;
    if (this.#size > LARGEST_ANSWER) {
      this.#held = [];
      this.end();
      this.overflow();
      return;
    }
    this.#held.push(chunk);
    // Only the new chunk and a marker's length before it are searched: megabytes of output must not cost their square.
    const seen = Buffer.concat([this.#tail, chunk]);
    this.#tail = seen.subarray(-(this.mark.length + LONGEST_WORD));
    if (seen.includes(this.mark)) this.#split();
  }

  #split(): void {
    const all = Buffer.concat(this.#held);
    const start = all.indexOf(this.mark);
    const end = start < 0 ? -1 : all.indexOf("\n", start);
    this.#held = [all];
    if (end < 0) return;
    this.#held = [all.subarray(end + 1)];
    this.#tail = this.#held[0]!.subarray(-(this.mark.length + LONGEST_WORD));
    const word = all.toString("utf8", start + this.mark.length, end).trim();
    this.#deliver({ text: all.toString("utf8", 0, start), word });
    this.#split();
  }

  #deliver(frame: Frame): void {
    const resolve = this.#waiting.shift();
    if (resolve) resolve(frame);
    else this.#cut.push(frame);
  }
}
