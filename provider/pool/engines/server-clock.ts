/** A server's time, extrapolated from its last answer by the monotonic clock. This machine's wall clock may be wrong and is not used for it. */
export class ServerClock {
  #answer: { time: number; at: number; wall: number } | undefined;

  /** `lifetime`: for how long an answer is used, in milliseconds. */
  constructor(private readonly lifetime: number) {}

  set(time: number): void {
    this.#answer = { time, at: performance.now(), wall: Date.now() };
  }

  now(): number | undefined {
    if (!this.#answer) return undefined;
    const { time, at, wall } = this.#answer;
    const passed = performance.now() - at;
    // The monotonic clock stops while the machine is suspended. The wall clock shows that, and that it was set.
    const trusted = passed < this.lifetime && Math.abs(Date.now() - wall - passed) < 1000;
    return trusted ? Math.round(time + passed) : undefined;
  }
}
