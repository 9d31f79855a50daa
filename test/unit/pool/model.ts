/**
 * A model of the pool's rules for single values: a list that is searched from end to end. Times are in milliseconds from 0. Offers expire
 * after an hour and are rewritten after a minute at the earliest; released values are quarantined for five minutes.
 */
const [QUARANTINE_MS, OFFER_TTL_MS, REWRITE_AFTER_MS] = [300_000, 3_600_000, 60_000];

interface ModelLease {
  owner: string;
  value: bigint;
  state: "offered" | "reserved" | "used" | "quarantined";
  made: number;
  changed: number;
  ends: number;
  /** Of an offer: the value that was asked for, or null for any. */
  asked?: bigint | null;
  /** Of an offer: the quarantined lease that it has interrupted. */
  interrupted?: ModelLease;
}

type Step =
  | { op: "pass"; seconds: number }
  | { op: "offer" | "claim"; owner: string; want: bigint | null; ttl: number | null }
  | { op: "release" | "use"; owner: string };

export class Model {
  #now = 0;
  #list: ModelLease[] = [];
  /** The lease that was evicted for the chosen value. */
  #evicted: ModelLease | undefined;

  constructor(
    readonly values: bigint[],
    readonly reserved: bigint[],
  ) {}

  /** Each step takes a millisecond, so that of two leases one is always the newer. */
  answer(step: Step): unknown {
    this.#now += 1;
    if (step.op === "pass") {
      this.#now += step.seconds * 1000;
      return undefined;
    }
    if (step.op === "offer" || step.op === "claim")
      return this.#grant(step.op === "claim", step.owner, step.want, step.ttl);
    const held = this.#best(step.owner, (one) => this.#isActive(one));
    if (!held) return undefined;
    if (step.op === "release") {
      if (held.state === "offered") this.#end(held);
      else Object.assign(held, { state: "quarantined", changed: this.#now, ends: this.#now + QUARANTINE_MS });
      return true;
    }
    if (held.state === "offered") return undefined;
    Object.assign(held, { state: "used", ends: Infinity });
    return "used";
  }

  held(): [string, bigint][] {
    const held = this.#list.filter((one) => this.#isActive(one)).sort((a, b) => Number(a.value - b.value));
    return held.map(({ owner, value }) => [owner, value]);
  }

  #grant(committed: boolean, owner: string, want: bigint | null, ttl: number | null): bigint | string {
    const own = this.#best(owner, (one) =>
      want === null ? one.state !== "offered" || one.asked === null : one.value === want,
    );
    if (!committed && own && isCommitted(own) && this.#isActive(own)) return own.value;
    const before = structuredClone(this.#list);
    for (const one of [...this.#list]) if (this.#now > one.ends && one.owner !== owner) this.#expire(one);
    this.#evicted = undefined;
    const value = own?.value ?? (want === null ? this.#pick() : this.#clear(want, owner, committed));
    if (typeof value === "string") {
      this.#list = before;
      return value;
    }
    const state = !committed ? "offered" : own?.state === "used" ? "used" : "reserved";
    const isRecent = !committed && own?.state === "offered" && this.#now - own.changed < REWRITE_AFTER_MS;
    const changed = isRecent ? own.changed : this.#now;
    const ends = !committed
      ? changed + OFFER_TTL_MS
      : state === "used" || ttl === null
        ? Infinity
        : this.#now + ttl * 1000;
    const made = own && this.#isActive(own) ? own.made : this.#now;
    this.#list = this.#list.filter((one) => one !== own);
    const interrupted = committed ? undefined : own ? own.interrupted : this.#quarantineOf(this.#evicted);
    const asked = own?.state === "offered" ? own.asked! : want;
    this.#list.push({
      owner,
      value,
      state,
      made,
      changed,
      ends,
      ...(!committed && { asked }),
      ...(interrupted && { interrupted }),
    });
    for (const one of [...this.#list])
      if (committed && one.owner === owner && one.state === "offered" && one.asked === asked) this.#end(one);
    return value;
  }

  #pick(): bigint | string {
    const isFree = (value: bigint) => !this.#list.some((one) => one.value === value);
    const free = this.values.find(isFree);
    // Expired leases of the owner are still in the list. Their values are free, unless they are quarantined.
    for (const one of [...this.#list])
      if (this.#now > one.ends && (free === undefined || (one.value < free && !this.#isQuarantinedAfter(one))))
        this.#expire(one);
    const lowest = this.values.find(isFree);
    if (lowest !== undefined) return lowest;
    const candidates = ["quarantined", "offered"].flatMap((state) =>
      this.#list.filter((one) => one.state === state).sort((a, b) => a.ends - b.ends),
    );
    const victim = candidates.find((one) => this.#isPreemptible(one));
    if (!victim) return "RUNNER_IDS_EXHAUSTED";
    this.#evicted = victim;
    this.#drop(victim);
    return victim.value;
  }

  #clear(want: bigint, owner: string, committed: boolean): bigint | string {
    if (this.reserved.includes(want)) return "IP_RESERVED";
    const holder = this.#list.find((one) => one.value === want);
    if (!holder) return want;
    if (this.#now <= holder.ends && !this.#isPreemptible(holder) && holder.owner !== owner)
      return committed ? "PLAN_STALE" : "RUNNER_ID_TAKEN";
    this.#evicted = holder;
    this.#drop(holder);
    return want;
  }

  /** Committed leases first, then offers, then ended leases; of these the newest. */
  #best(owner: string, fits: (one: ModelLease) => boolean): ModelLease | undefined {
    const rank = (one: ModelLease) => (one.state === "offered" ? 1 : this.#isActive(one) ? 0 : 2);
    return this.#list
      .filter((one) => one.owner === owner && fits(one))
      .sort((a, b) => rank(a) - rank(b) || b.made - a.made)[0];
  }

  #isActive(one: ModelLease): boolean {
    return one.state !== "quarantined" && this.#now <= one.ends;
  }

  #isPreemptible(one: ModelLease): boolean {
    return one.state === "quarantined";
  }

  #expire(one: ModelLease): void {
    const isQuarantined = one.state === "reserved" && one.ends + QUARANTINE_MS > this.#now;
    if (isQuarantined) Object.assign(one, { state: "quarantined", changed: this.#now, ends: one.ends + QUARANTINE_MS });
    else this.#end(one);
  }

  #isQuarantinedAfter(one: ModelLease): boolean {
    return (
      (one.state === "reserved" && one.ends + QUARANTINE_MS > this.#now) ||
      this.#quarantineOf(one.interrupted) !== undefined
    );
  }

  #quarantineOf(evicted: ModelLease | undefined): ModelLease | undefined {
    const quarantined = evicted?.state === "quarantined" ? evicted : evicted?.interrupted;
    return quarantined && quarantined.ends > this.#now ? quarantined : undefined;
  }

  #end(one: ModelLease): void {
    this.#drop(one);
    if (one.interrupted && one.interrupted.ends > this.#now) this.#list.push(one.interrupted);
  }

  #drop(one: ModelLease): void {
    this.#list = this.#list.filter((other) => other !== one);
  }
}

const isCommitted = ({ state }: ModelLease): boolean => state === "reserved" || state === "used";
