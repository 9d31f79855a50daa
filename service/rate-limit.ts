/** Token buckets: each key may make `perSecond` requests, and as many again at once. */
export class RateLimit {
  readonly #buckets = new Map<string, { left: number; at: number }>();

  constructor(
    private readonly perSecond: number,
    private readonly now: () => number = Date.now,
  ) {}

  /** false: the key has to wait. */
  take(key: string): boolean {
    const bucket = this.#refill(key);
    if (bucket.left < 1) return false;
    bucket.left--;
    return true;
  }

  /** What a request that was taken has cost besides. The key waits for it, at most a second longer. */
  charge(key: string, cost: number): void {
    const bucket = this.#refill(key);
    bucket.left = Math.max(-this.perSecond, bucket.left - cost);
  }

  giveBack(key: string): void {
    const bucket = this.#refill(key);
    bucket.left = Math.min(this.perSecond, bucket.left + 1);
  }

  #refill(key: string): { left: number; at: number } {
    const now = this.now();
    const { left, at } = this.#buckets.get(key) ?? { left: this.perSecond, at: now };
    const bucket = { left: Math.min(this.perSecond, left + ((now - at) / 1000) * this.perSecond), at: now };
    if (this.#buckets.size > MOST_BUCKETS) this.#dropFull(now);
    this.#buckets.set(key, bucket);
    return bucket;
  }

  /** A bucket is full after a second without requests, and is then as good as none. */
  #dropFull(now: number): void {
    for (const [key, { at }] of this.#buckets) if (now - at >= 1000) this.#buckets.delete(key);
  }
}

const MOST_BUCKETS = 10_000;
