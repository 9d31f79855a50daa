import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { EtcdJournal, Keys, Ticket } from "./etcd-journal";
import { isStill, put, remove, type Wire } from "./etcd-wire";
import { LostRace, type News, type Turn, type Version } from "./journal";

/** A ticket that is not renewed is void after so many seconds: its holder is dead or has fallen asleep. */
const LIFETIME = 5;
/** Nor does anybody wait so many milliseconds for somebody in front who does nothing; who takes longer says so before. */
const STANDSTILL = 400;
const BEAT = STANDSTILL / 4;
/** Who has nothing more to do for so many milliseconds leaves the line. */
const IDLE = 10;

/** How it looks from here: the line, and what is new. */
export interface Sight {
  /** Tickets, in front first. */
  line: string[];
  /** The first of them as it is written, which changes while its holder is at work. */
  front: string;
  latest: News;
}

/** Our number, the etcd lease that it lies on, and how often we have said that we are at work. */
interface Drawn {
  number: number;
  lease: string;
  beats: number;
}

const textOf = ({ number, beats }: Drawn): string => `${number} ${beats}`;

/**
 * Who loses draws a ticket: nobody without one commits while there are any. Its number is the version at which it was
 * drawn, and the lowest goes first. A commit puts its own ticket at the end of the line by the way, so that in a crowd a
 * turn costs one write and not two. It is about fairness, and about not proposing in vain; what is safe is decided by the
 * head alone. So somebody who stands in front and does nothing, killed perhaps, is simply passed by.
 */
export class Line {
  readonly #key: string;
  #lease: { id: string; at: number } | undefined;
  /** Our ticket, while we stand in line. */
  #drawn: Drawn | undefined;
  #leaving: NodeJS.Timeout | undefined;
  /** How long a turn takes here, in milliseconds; whoever is further behind asks less often. */
  #pace = 5;

  constructor(
    private readonly wire: Wire,
    keys: Keys,
  ) {
    this.#key = keys.ticket(randomBytes(8).toString("hex"));
  }

  async turn(journalWith: (ticket: Ticket) => EtcdJournal, patience: number, since?: Version): Promise<Turn> {
    clearTimeout(this.#leaving);
    let alone = true;
    const ticket: Ticket = {
      key: this.#key,
      afterCommit: (number) => (alone ? remove(this.#key) : this.#again(number)),
    };
    const journal = journalWith(ticket);
    try {
      const { line, latest } = await this.#reachFront(journal, Date.now() + patience, since);
      alone = line.length === 1;
      return this.#atFront(journal, latest, () => alone);
    } catch (error) {
      await this.leave().catch(() => {});
      throw error;
    }
  }

  async leave(): Promise<void> {
    clearTimeout(this.#leaving);
    if (!this.#drawn) return;
    this.#drawn = undefined;
    await this.wire.txn([], [remove(this.#key)]);
  }

  async #reachFront(journal: EtcdJournal, deadline: number, since?: Version): Promise<Sight> {
    for (let still = { front: "", head: -1, from: 0 }; ; ) {
      await this.#draw(since?.number ?? 0);
      const sight = await journal.sight(since);
      const { line, front, latest } = sight;
      const place = line.indexOf(this.#key);
      if (place === 0) return sight;
      if (Date.now() > deadline) throw new LostRace();
      if (still.front !== front || still.head !== latest.head.number)
        still = { front, head: latest.head.number, from: Date.now() };
      else if (Date.now() - still.from > STANDSTILL) await this.wire.txn([], [remove(line[0]!)]);
      // Others may have taken us for dead.
      if (place < 0) this.#drawn = undefined;
      await sleep(place > 1 ? this.#pace * (place - 1) : this.#pace / 4);
    }
  }

  async #draw(number: number): Promise<void> {
    const lease = await this.#freshLease();
    if (this.#drawn?.lease === lease) return;
    const drawn = { number: this.#drawn?.number ?? number, lease, beats: 0 };
    await this.wire.txn([], [put(this.#key, textOf(drawn), lease)]);
    this.#drawn = drawn;
  }

  #again(number: number) {
    const { lease } = this.#drawn!;
    return put(this.#key, textOf({ number, lease, beats: 0 }), lease);
  }

  #atFront(journal: EtcdJournal, latest: News, alone: () => boolean): Turn {
    const began = performance.now();
    let committed = false;
    const beating = setInterval(() => void this.#beat().catch(() => {}), BEAT);
    beating.unref();
    return {
      latest,
      news: (since) => journal.news(since),
      rows: (at, spans) => journal.rows(at, spans),
      commit: async (from, commit, hoped) => {
        const news = await journal.commit(from, commit, hoped);
        if (news) return news;
        committed = true;
        this.#drawn = alone() ? undefined : { number: commit.number, lease: this.#drawn!.lease, beats: 0 };
        return undefined;
      },
      end: async () => {
        clearInterval(beating);
        this.#pace = Math.min(Math.max(performance.now() - began, 2), 50);
        // What was done is done: a ticket that cannot be given back runs out by itself.
        if (!committed) return this.leave().catch(() => {});
        this.#leaving = setTimeout(() => void this.leave().catch(() => {}), IDLE);
        this.#leaving.unref();
      },
    };
  }

  /** A sign of life in a long turn. Where the ticket is not as we left it, the turn is over. */
  async #beat(): Promise<void> {
    const [drawn, lease] = [this.#drawn, await this.#freshLease()];
    if (!drawn || drawn !== this.#drawn) return;
    const next = { ...drawn, lease, beats: drawn.beats + 1 };
    const { succeeded } = await this.wire.txn(
      [isStill(this.#key, textOf(drawn))],
      [put(this.#key, textOf(next), lease)],
    );
    if (succeeded && this.#drawn === drawn) this.#drawn = next;
  }

  /** Put on a new lease, a ticket keeps its number. */
  async #freshLease(): Promise<string> {
    if (!this.#lease || Date.now() - this.#lease.at > (LIFETIME * 1000) / 2)
      this.#lease = { at: Date.now(), id: await this.wire.lease(LIFETIME) };
    return this.#lease.id;
  }
}
