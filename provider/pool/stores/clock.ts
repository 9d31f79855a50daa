/** A server's time between its answers, by our stopwatch: our own clock, which may be wrong, is never asked what time it is. */
export class HeardClock {
  #heard: { time: number; at: number; wall: number } | undefined;

  /** `lifetime`: so many milliseconds after an answer it knows the time no more. */
  constructor(private readonly lifetime: number) {}

  hear(time: number): void {
    this.#heard = { time, at: performance.now(), wall: Date.now() };
  }

  now(): number | undefined {
    if (!this.#heard) return undefined;
    const { time, at, wall } = this.#heard;
    const passed = performance.now() - at;
    // A stopwatch stands still while the machine sleeps; the wall clock tells that it did, or that somebody set it.
    const trusted = passed < this.lifetime && Math.abs(Date.now() - wall - passed) < 1000;
    return trusted ? Math.round(time + passed) : undefined;
  }
}
