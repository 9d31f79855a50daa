import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../errors";
import { sameStack } from "../owner";
import { amend, close, release, touch } from "./changing";
import type { Asking } from "./choice";
import { type Draft, drafted, type Terms } from "./draft";
import { meetsAny } from "./extents";
import { fsck } from "./fsck";
import { claim, offer } from "./granting";
import { adoptIdentity, findSeen, readIdentity } from "./identity";
import { secretKey } from "./keys";
import { Queue } from "./queue";
import { enrol } from "./recover";
import type { Rule } from "./rule";
import { Sorted } from "./sorted";
import type { Store } from "./store";
import {
  type By,
  type Changes,
  type Condition,
  type Extent,
  type Fact,
  isFirm,
  type Lease,
  type Opening,
  type Pool,
  type Request,
  type StoreIdentity,
} from "./types";
import * as views from "./views";
import { mustMove } from "./wording";

export interface Settings extends Terms {
  /** Where the store is, for messages. */
  place?: string;
  /** How long a claim waits for a neighbour in its stack to leave the value that it wants. Seconds; default 5. */
  swapPatience?: number;
}

/** Previews that write nothing still keep their promises for as long as the process lives. */
const IMAGINED_TTL = 24 * 3600;

/** The pool over any store: rules, group commit, and what only this process knows. */
export class LivePool implements Pool {
  readonly #queue: Queue;
  /** What owners have asked for in this process. Never stored: a preview that is not merged must not move anything. */
  readonly #intents = new Map<string, { want: Extent[]; done: boolean }>();
  /** Offers that may not be written, as rows over the store: each sees those before it. */
  #imagined = new Sorted<string | null>();
  #imagining: Promise<unknown> = Promise.resolve();

  /** Who has asked for anything in this process. */
  readonly #met = new Set<string>();
  /** Epochs that the store was found to have: it only grows, so that one read serves all resources of an epoch. */
  readonly #included: (StoreIdentity & { first: number; last: number })[] = [];
  private readonly settings: Settings;

  constructor(
    private readonly store: Store,
    settings: Settings,
  ) {
    const abandoned = (holder: Lease, owner: string) =>
      sameStack(holder.owner, owner) && !this.#met.has(intentKey(holder));
    this.settings = { ...settings, abandoned };
    this.#queue = new Queue(store, this.settings);
  }

  async offer(request: Request, { imagined = false } = {}): Promise<Lease> {
    const asking = this.#ask(request, { firm: false, planned: false });
    const attempt = (tx: Draft) => this.#attempt(tx, asking);
    return imagined ? this.#imagine(attempt) : this.#promise(request.pool, attempt);
  }

  /** A transaction may be tried again: what counts is whom the attempt met that stands. */
  *#attempt(tx: Draft, asking: Omit<Asking, "leaves">): Rule<Lease> {
    const { request } = asking;
    const unheard = new Map<string, Lease>();
    const leaves = (holder: Lease) => {
      const may = this.#mayLeave(request, holder);
      if (may && !this.#met.has(intentKey(holder))) unheard.set(holder.uid, holder);
      return may;
    };
    const lease = yield* offer(tx, { ...asking, leaves });
    const warnings = [...(lease.warnings ?? []), ...[...unheard.values()].map((holder) => mustMove(holder, request))];
    return warnings.length ? { ...lease, warnings } : lease;
  }

  async #promise(pool: string, attempt: (tx: Draft) => Rule<Lease>): Promise<Lease> {
    if (this.settings.offerTtl === 0 || this.store.readOnly) return this.#imagine(attempt);
    const written = function* (tx: Draft): Rule<Lease | undefined> {
      const lease = yield* attempt(tx);
      if (!tx.onlyImagined) return lease;
      tx.discard();
      return undefined;
    };
    return (await this.#queue.add(pool, written, true)) ?? this.#imagine(attempt);
  }

  async claim(request: Request): Promise<Lease> {
    const deadline = Date.now() + (this.settings.swapPatience ?? 5) * 1000;
    for (;;) {
      let metNeighbour = false;
      const leaves = (holder: Lease) => {
        metNeighbour ||= sameStack(holder.owner, request.owner);
        return this.#isLeaving(request, holder);
      };
      try {
        const asking = { ...this.#ask(request, { firm: true, planned: true }), leaves };
        const lease = await this.#queue.add(request.pool, (tx) => claim(tx, asking));
        this.#intents.set(intentKey(request), { want: lease.extents, done: true });
        return lease;
      } catch (error) {
        // The neighbour may be about to ask for another value, or to release this one.
        if (!metNeighbour || !isOverlayError(error, "PLAN_STALE") || Date.now() > deadline) throw error;
      }
      await sleep(100);
    }
  }

  async stays(lease: Lease): Promise<void> {
    this.#hear(lease, lease.extents);
    await this.#imagining; // whoever comes after this has heard it
    if (this.#imagined.size === 0) return;
    const refusal = await this.store.read((tx) =>
      drafted(tx, this.settings, (draft) => views.ousted(draft, lease), new Sorted(this.#imagined)),
    );
    if (refusal) throw refusal;
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#look((tx) => views.find(tx, pool, by));
  }

  async holder(name: string): Promise<Lease | undefined> {
    return this.#look((tx) => views.holder(tx, name));
  }

  async spec(pool: string) {
    return this.#look((tx) => views.spec(tx, pool));
  }

  async usage(pool: string) {
    return this.#look((tx) => views.usage(tx, pool));
  }

  /** With what is only imagined, so that previews that write nothing fill pools evenly, too. */
  async usages(prefix: string) {
    return this.store.read((tx) =>
      drafted(tx, this.settings, (draft) => views.usages(draft, prefix), new Sorted(this.#imagined)),
    );
  }

  async leases(pool: string, options: { after?: bigint; limit?: number } = {}) {
    return this.#read((tx) => views.leases(tx, pool, options));
  }

  async pools(prefix = "") {
    return this.#read((tx) => views.pools(tx, prefix));
  }

  async history(pool: string, options: { after?: number; limit?: number } = {}) {
    return this.#read((tx) => views.history(tx, pool, options));
  }

  amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    { dryRun = false, onlyIf }: { dryRun?: boolean; onlyIf?: Condition } = {},
  ): Promise<Lease> {
    const work = (tx: Draft) => amend(tx, pool, leaseId, changes, onlyIf);
    return dryRun ? this.#read(work) : this.#queue.add(pool, work);
  }

  close(pool: string, leaseId: string): Promise<void> {
    return this.#queue.add(pool, (tx) => close(tx, pool, leaseId));
  }

  release(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<boolean> {
    return this.#queue.add(pool, (tx) => release(tx, pool, leaseId, onlyIf));
  }

  touch(pool: string, leaseId: string, { ttl }: { ttl?: number } = {}): Promise<void> {
    return this.#queue.add(pool, (tx) => touch(tx, pool, leaseId, ttl));
  }

  enrol(facts: Fact[], { opening = [], dryRun = false }: { opening?: Opening[]; dryRun?: boolean } = {}) {
    const work = (tx: Draft) => enrol(tx, facts, opening);
    return dryRun ? this.#read(work) : this.#queue.add("", work);
  }

  findSecret(name: string): Promise<string | undefined> {
    return this.#read((tx) => tx.get(secretKey(name)));
  }

  replaceSecret(name: string, change: (kept: string | undefined) => string): Promise<string> {
    return this.#queue.add("", function* (tx): Rule<string> {
      const value = change(yield* tx.get(secretKey(name)));
      tx.put(secretKey(name), value);
      return value;
    });
  }

  async secret(name: string, initial: string): Promise<string> {
    const kept = await this.findSecret(name);
    return kept ?? this.#queue.add("", (tx) => keepSecret(tx, name, initial));
  }

  async identity(): Promise<StoreIdentity> {
    const { recovered: _, ...found } = await this.#read(readIdentity);
    return { ...found, id: found.id ?? (await this.secret("identity", randomUUID())) };
  }

  async mustInclude(seen: StoreIdentity): Promise<void> {
    const isKnown = this.#included.some(
      ({ id, epoch, first, last }) =>
        id === seen.id && epoch === seen.epoch && first <= seen.version && seen.version <= last,
    );
    if (isKnown) return;
    const { first, last } = await this.#read((tx) => findSeen(tx, seen, this.settings.place));
    this.#included.push({ ...seen, first, last });
  }

  adoptIdentity(from: string[], version: number): Promise<void> {
    return this.#queue.add("", (tx) => adoptIdentity(tx, from, version));
  }

  fsck(options: { repair?: boolean } = {}) {
    return fsck(this.store, this.settings, options.repair ?? false);
  }

  async end(): Promise<void> {
    await this.#queue.idle();
    await this.store.close();
  }

  #ask(request: Request, terms: Pick<Asking, "firm" | "planned">): Omit<Asking, "leaves"> {
    this.#hear(request, request.want);
    return { request, chance: randomUUID(), ...terms };
  }

  #hear(owner: Pick<Lease, "pool" | "owner">, want: Extent[] | undefined): void {
    this.#met.add(intentKey(owner));
    if (want) this.#intents.set(intentKey(owner), { want, done: false });
  }

  /**
   * In check, a neighbour's value is not refused: its own turn may come later, and it may ask for another one. The
   * blocks of networks and pools are not swapped.
   */
  #mayLeave(request: Request, holder: Lease): boolean {
    if (request.pool.startsWith("space/") && isFirm(holder)) return false;
    const intent = this.#intents.get(intentKey(holder));
    const stays = intent && !intent.done && intent.want.some((extent) => meetsAny(holder.extents, extent));
    return !stays && sameStack(holder.owner, request.owner);
  }

  #isLeaving(request: Request, holder: Lease): boolean {
    const intent = this.#intents.get(intentKey(holder));
    const leaves = intent && !intent.want.some((extent) => meetsAny(holder.extents, extent));
    return leaves === true && sameStack(holder.owner, request.owner);
  }

  /** An offer that is remembered here instead of in the store. One at a time, so that each sees those before it. */
  #imagine(attempt: (tx: Draft) => Rule<Lease>): Promise<Lease> {
    const terms = { ...this.settings, offerTtl: IMAGINED_TTL };
    const lease = this.#imagining.then(async () => {
      let writes = this.#imagined;
      const lease = await this.store.read((tx) => {
        writes = new Sorted(this.#imagined);
        return drafted(tx, terms, attempt, writes);
      });
      this.#imagined = writes;
      return lease;
    });
    this.#imagining = lease.catch(() => {});
    return lease;
  }

  #read<T>(view: (tx: Draft) => Rule<T>): Promise<T> {
    return this.store.read((tx) => drafted(tx, this.settings, view));
  }

  /** What is stored counts; what is only imagined, where nothing is stored. */
  async #look<T>(view: (tx: Draft) => Rule<T>): Promise<T> {
    const stored = await this.#read(view);
    if (stored !== undefined || this.#imagined.size === 0) return stored;
    return this.store.read((tx) => drafted(tx, this.settings, view, new Sorted(this.#imagined)));
  }
}

function* keepSecret(tx: Draft, name: string, initial: string): Rule<string> {
  const kept = yield* tx.get(secretKey(name));
  if (kept === undefined) tx.put(secretKey(name), initial);
  return kept ?? initial;
}

const intentKey = ({ pool, owner }: { pool: string; owner: string }): string => JSON.stringify([pool, owner]);
