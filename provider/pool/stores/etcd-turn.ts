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

  constructor(
    private readonly wire: Wire,
    private readonly keys: Keys,
  ) {}

  async turn(journalWith: (ticket: string) => EtcdJournal, patience: number, since?: Version): Promise<Turn> {
    const ticket = this.keys.ticket(randomBytes(8).toString("hex"));
    const journal = journalWith(ticket);
    const leave = () => this.wire.txn([], [remove(ticket)]);
    let isOurs = true;
    const latest = await this.#reachFront(ticket, journal, Date.now() + patience, since).catch(
      async (error: unknown) => {
        await leave().catch(() => {});
        throw error;
      },
    );
    return {
      latest,
      news: (since) => journal.news(since),
      rows: (at, spans) => journal.rows(at, spans),
      commit: async (from, commit) => {
        const news = await journal.commit(from, commit);
        // A commit takes the ticket with it.
        if (!news) isOurs = false;
        return news;
      },
      end: async () => {
        if (isOurs) await leave();
      },
    };
  }

  async #reachFront(ticket: string, journal: EtcdJournal, deadline: number, since?: Version): Promise<News> {
    for (let drawn: string | undefined; ; ) {
      const lease = await this.#freshLease();
      if (lease !== drawn) await this.wire.putOn(lease, ticket);
      drawn = lease;
      const { place, news } = await journal.inLine(since);
      if (news) return news;
      if (Date.now() > deadline) throw new LostRace();
      if (place < 0) drawn = undefined;
      await sleep((1 + Math.random()) * 2 * Math.max(place, 1));
    }
  }

  /** Put on a new lease, a ticket keeps its place: age counts from when it was drawn. */
  async #freshLease(): Promise<string> {
    if (!this.#lease || Date.now() - this.#lease.at > (LIFETIME * 1000) / 2)
      this.#lease = { at: Date.now(), id: await this.wire.lease(LIFETIME) };
    return this.#lease.id;
  }
}
