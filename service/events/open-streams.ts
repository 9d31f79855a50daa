import { OverlayError } from "../../provider/errors";
import type { Metrics } from "../metrics/metrics";

/** Streams of events that one access token may have open in one process: each costs memory and a read of every event. */
export const MOST_STREAMS = 64;

/** The streams that are open, of HTTP and gRPC together. */
export class OpenStreams {
  readonly #counts = new Map<string, number>();

  constructor(private readonly metrics: Pick<Metrics, "openStream">) {}

  /** Returns what ends the stream, to be called once. */
  open(caller: string): () => void {
    const count = this.#counts.get(caller) ?? 0;
    if (count >= MOST_STREAMS)
      throw new OverlayError(
        "RATE_LIMITED",
        `Access token ${caller} has ${count} streams of events open, the most that it may have.`,
        "Close one, or use another access token.",
      );
    this.#counts.set(caller, count + 1);
    const endMetric = this.metrics.openStream();
    return () => {
      endMetric();
      const left = this.#counts.get(caller)! - 1;
      if (left === 0) this.#counts.delete(caller);
      else this.#counts.set(caller, left);
    };
  }
}
