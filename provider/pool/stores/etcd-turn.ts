import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { EtcdJournal, Keys } from "./etcd-journal";
import { remove, type Wire } from "./etcd-wire";
import { LostRace, type News, type Turn, type Version } from "./journal";

/** A ticket that is not renewed is void after so many seconds: its holder is dead or has fallen asleep. */
const LIFETIME = 5;

/**
 * Who loses draws a ticket: nobody without one commits while there are any, and the oldest goes first. It is about
 * fairness, and about not proposing in vain; what is safe is decided by the head alone.
 */
export class Line {
  #lease: { id: string; at: number } | undefined;
  /** How long a turn takes here, in milliseconds; whoever is further behind asks less often. */
  #pace = 5;

  constructor(
    private readonly wire: Wire,
    private readonly keys: Keys,
  ) {}

  async turn(journalWith: (ticket: string) => EtcdJournal, patience: number, since?: Version): Promise<Turn> {
    const ticket = this.keys.ticket(randomBytes(8).toString("hex"));
    const journal = journalWith(ticket);
    const leave = () => this.wire.txn([], [remove(ticket)]);
    try {
      await this.#reachFront(ticket, Date.now() + patience);
      const began = performance.now();
      return this.#atFront(journal, await journal.news(since), leave, began);
    } catch (error) {
      await leave().catch(() => {});
      throw error;
    }
  }

  async #reachFront(ticket: string, deadline: number): Promise<void> {
    for (let drawn: string | undefined; ; ) {
      const lease = await this.#freshLease();
      if (lease !== drawn) await this.wire.putOn(lease, ticket);
      drawn = lease;
      const place = (await this.wire.byAge(this.keys.ticket(), this.keys.ticketEnd)).indexOf(ticket);
      if (place === 0) return;
      if (Date.now() > deadline) throw new LostRace();
      await sleep(place > 1 ? this.#pace * (place - 1) : this.#pace / 4);
    }
  }

  #atFront(journal: EtcdJournal, latest: News, leave: () => Promise<unknown>, began: number): Turn {
    let isOurs = true;
    return {
      latest,
      news: (since) => journal.news(since),
      rows: (at, spans) => journal.rows(at, spans),
      commit: async (...what) => {
        const news = await journal.commit(...what);
        // A commit takes the ticket with it.
        if (!news) isOurs = false;
        return news;
      },
      end: async () => {
        this.#pace = Math.min(Math.max(performance.now() - began, 2), 50);
        if (isOurs) await leave();
      },
    };
  }

  /** Put on a new lease, a ticket keeps its place: age counts from when it was drawn. */
  async #freshLease(): Promise<string> {
    if (!this.#lease || Date.now() - this.#lease.at > (LIFETIME * 1000) / 2)
      this.#lease = { at: Date.now(), id: await this.wire.lease(LIFETIME) };
    return this.#lease.id;
  }
}
