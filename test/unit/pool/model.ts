/**
 * The rules for single values, as simply as they can be said: a list that is searched from end to end. Time in milliseconds from 0;
 * offers hold an hour and are made again after a minute at the earliest; released values rest for five minutes.
 */
const [REST, OFFER, FRESH] = [300_000, 3_600_000, 60_000];

interface Held {
  owner: string;
  value: bigint;
  state: "offered" | "reserved" | "used" | "quarantined";
  made: number;
  changed: number;
  ends: number;
  /** Of an offer: the value that was asked for, or null for any. */
  asked?: bigint | null;
  /** Whose rest an offer has interrupted. */
  over?: Held;
}

type Step =
  | { op: "pass"; seconds: number }
  | { op: "offer" | "claim"; owner: string; want: bigint | null; ttl: number | null }
  | { op: "release" | "use"; owner: string };

export class Model {
  #now = 0;
  #list: Held[] = [];
  /** Who had to go for the value that was chosen. */
  #gone: Held | undefined;

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
    const held = this.#best(step.owner, (one) => this.#lives(one));
    if (!held) return undefined;
    if (step.op === "release") {
      if (held.state === "offered") this.#end(held);
      else Object.assign(held, { state: "quarantined", changed: this.#now, ends: this.#now + REST });
      return true;
    }
    if (held.state === "offered") return undefined;
    Object.assign(held, { state: "used", ends: Infinity });
    return "used";
  }

  held(): [string, bigint][] {
    const held = this.#list.filter((one) => this.#lives(one)).sort((a, b) => Number(a.value - b.value));
    return held.map(({ owner, value }) => [owner, value]);
  }

  #grant(committed: boolean, owner: string, want: bigint | null, ttl: number | null): bigint | string {
    const own = this.#best(owner, (one) =>
      want === null ? one.state !== "offered" || one.asked === null : one.value === want,
    );
    if (!committed && own && isCommitted(own) && this.#lives(own)) return own.value;
    const before = structuredClone(this.#list);
    for (const one of [...this.#list]) if (this.#now > one.ends && one.owner !== owner) this.#lapse(one);
    this.#gone = undefined;
    const value = own?.value ?? (want === null ? this.#pick() : this.#clear(want, owner, committed));
    if (typeof value === "string") {
      this.#list = before;
      return value;
    }
    const state = !committed ? "offered" : own?.state === "used" ? "used" : "reserved";
    const isFresh = !committed && own?.state === "offered" && this.#now - own.changed < FRESH;
    const changed = isFresh ? own.changed : this.#now;
    const ends = !committed ? changed + OFFER : state === "used" || ttl === null ? Infinity : this.#now + ttl * 1000;
    const made = own && this.#lives(own) ? own.made : this.#now;
    this.#list = this.#list.filter((one) => one !== own);
    const over = committed ? undefined : own ? own.over : this.#restOf(this.#gone);
    const asked = own?.state === "offered" ? own.asked! : want;
    this.#list.push({ owner, value, state, made, changed, ends, ...(!committed && { asked }), ...(over && { over }) });
    for (const one of [...this.#list])
      if (committed && one.owner === owner && one.state === "offered" && one.asked === asked) this.#end(one);
    return value;
  }

  #pick(): bigint | string {
    const isFree = (value: bigint) => !this.#list.some((one) => one.value === value);
    const free = this.values.find(isFree);
    // The owner's own past leases are still there; those whose values rest no longer count as free.
    for (const one of [...this.#list])
      if (this.#now > one.ends && (free === undefined || (one.value < free && !this.#restsAfter(one))))
        this.#lapse(one);
    const lowest = this.values.find(isFree);
    if (lowest !== undefined) return lowest;
    const goers = ["quarantined", "offered"].flatMap((state) =>
      this.#list.filter((one) => one.state === state).sort((a, b) => a.ends - b.ends),
    );
    const goer = goers.find((one) => this.#goes(one));
    if (!goer) return "RUNNER_IDS_EXHAUSTED";
    this.#gone = goer;
    this.#drop(goer);
    return goer.value;
  }

  #clear(want: bigint, owner: string, committed: boolean): bigint | string {
    if (this.reserved.includes(want)) return "IP_RESERVED";
    const holder = this.#list.find((one) => one.value === want);
    if (!holder) return want;
    if (this.#now <= holder.ends && !this.#goes(holder) && holder.owner !== owner)
      return committed ? "PLAN_STALE" : "RUNNER_ID_TAKEN";
    this.#gone = holder;
    this.#drop(holder);
    return want;
  }

  /** Firm ones first, then offers, then what is past; of these the newest. */
  #best(owner: string, fits: (one: Held) => boolean): Held | undefined {
    const rank = (one: Held) => (one.state === "offered" ? 1 : this.#lives(one) ? 0 : 2);
    return this.#list
      .filter((one) => one.owner === owner && fits(one))
      .sort((a, b) => rank(a) - rank(b) || b.made - a.made)[0];
  }

  #lives(one: Held): boolean {
    return one.state !== "quarantined" && this.#now <= one.ends;
  }

  #goes(one: Held): boolean {
    return one.state === "quarantined";
  }

  #lapse(one: Held): void {
    const rests = one.state === "reserved" && one.ends + REST > this.#now;
    if (rests) Object.assign(one, { state: "quarantined", changed: this.#now, ends: one.ends + REST });
    else this.#end(one);
  }

  #restsAfter(one: Held): boolean {
    return (one.state === "reserved" && one.ends + REST > this.#now) || this.#restOf(one.over) !== undefined;
  }

  #restOf(gone: Held | undefined): Held | undefined {
    const rest = gone?.state === "quarantined" ? gone : gone?.over;
    return rest && rest.ends > this.#now ? rest : undefined;
  }

  #end(one: Held): void {
    this.#drop(one);
    if (one.over && one.over.ends > this.#now) this.#list.push(one.over);
  }

  #drop(one: Held): void {
    this.#list = this.#list.filter((other) => other !== one);
  }
}

const isCommitted = ({ state }: Held): boolean => state === "reserved" || state === "used";
