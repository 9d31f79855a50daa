import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { EtcdJournal, Keys } from "./etcd-journal";
import { isStill, put, remove, type Wire } from "./etcd-wire";
import { LostRace, type News, type Turn, type Version } from "./journal";

/** A ticket that is not renewed is void after so many seconds: its holder is dead or has fallen asleep. */
const LIFETIME = 5;
/** Nor does anybody wait so many milliseconds for somebody in front who does nothing; who takes longer says so before. */
const STANDSTILL = 400;
const BEAT = STANDSTILL / 4;
/** Who has nothing more to do for so many milliseconds leaves the line. */
const IDLE = 10;

/** How it looks from here. */
export interface Sight {
  /** Tickets, in front first. */
  line: string[];
  /** The first of them as it is written, which changes while its holder is at work. */
  front: string;
  /** Number of the newest version. */
  head: number;
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
 * drawn, and the lowest goes first. The last commit of a turn puts its own ticket at the end of the line by the way, so
 * that in a crowd a turn costs one write and not two. It is about fairness, and about not proposing in vain; what is safe
 * is decided by the head alone. So somebody who stands in front and does nothing, killed perhaps, is simply passed by.
 */
export class Line {
  readonly #key: string;
  #lease: { id: string; at: number } | undefined;
  /** Our ticket, while we stand in line. */
  #drawn: Drawn | undefined;
  #leaving: NodeJS.Timeout | undefined;
  #left: Promise<unknown> = Promise.resolve();
  readonly #pace = new Pace();

  constructor(
    private readonly wire: Wire,
    keys: Keys,
  ) {
    this.#key = keys.ticket(randomBytes(8).toString("hex"));
  }

  async turn(journal: EtcdJournal, patience: number, since?: Version): Promise<Turn> {
    clearTimeout(this.#leaving);
    try {
      // Else the next ticket might be taken for the one that is being given back.
      await this.#left.catch(() => {});
      const { line, head } = await this.#reachFront(journal, Date.now() + patience, since);
      const latest = await journal.newsNear(head, since);
      return this.#atFront(journal, latest, line.length === 1);
    } catch (error) {
      await this.leave().catch(() => {});
      throw error;
    }
  }

  leave(): Promise<unknown> {
    clearTimeout(this.#leaving);
    if (this.#drawn) this.#left = this.wire.txn([], [remove(this.#key)]);
    this.#drawn = undefined;
    return this.#left;
  }

  async #reachFront(journal: EtcdJournal, deadline: number, since?: Version): Promise<Sight> {
    for (let still = { front: "", head: -1, from: 0 }; ; ) {
      await this.#draw(since?.number ?? 0);
      const sight = await journal.sight(since);
      const { line, front, head } = sight;
      const place = line.indexOf(this.#key);
      if (place === 0) {
        this.#pace.arrive();
        return sight;
      }
      if (Date.now() > deadline) throw new LostRace();
      if (still.front !== front || still.head !== head) still = { front, head, from: Date.now() };
      else if (Date.now() - still.from > STANDSTILL) await this.wire.txn([], [remove(line[0]!)]);
      // Others may have taken us for dead.
      if (place < 0) this.#drawn = undefined;
      await sleep(this.#pace.untilNext(Math.max(place, 1)));
    }
  }

  async #draw(number: number): Promise<void> {
    const lease = await this.#freshLease();
    if (this.#drawn?.lease === lease) return;
    const drawn = { number: this.#drawn?.number ?? number, lease, beats: 0 };
    await this.wire.txn([], [put(this.#key, textOf(drawn), lease)]);
    this.#drawn = drawn;
  }

  #atFront(journal: EtcdJournal, latest: News, alone: boolean): Turn {
    let moved = false;
    const beating = setInterval(() => void this.#beat().catch(() => {}), BEAT).unref();
    return {
      latest,
      news: (since) => journal.news(since),
      findId: (number) => journal.findId(number),
      rows: (at, spans) => journal.rows(at, spans),
      commit: async (from, commit, hoped) => {
        const again = alone ? undefined : { number: commit.number, lease: this.#drawn!.lease, beats: 0 };
        const moving = again ? put(this.#key, textOf(again), again.lease) : remove(this.#key);
        const news = await journal.commit(from, commit, hoped, [moving]);
        if (news) return news;
        moved = true;
        this.#drawn = again;
        return undefined;
      },
      end: async () => {
        clearInterval(beating);
        // What was done is done: a ticket that cannot be given back runs out by itself.
        const leave = () => this.leave().catch(() => {});
        if (moved) this.#leaving = setTimeout(leave, IDLE).unref();
        else await leave();
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

/** How fast the line moves. Looking costs the members and ourselves more than waiting: who is far behind looks seldom. */
export class Pace {
  /** Milliseconds for each place. */
  #pace = 10;
  /** Where we stood when we last moved; in front while we do not wait. */
  #mark = { place: 0, at: 0 };

  /** How long to wait at this place before the next look. */
  untilNext(place: number): number {
    this.#reach(place);
    return place > 1 ? clamped((this.#pace * (place - 1)) / 2, 5, 100) : clamped(this.#pace / 8, 2, 12);
  }

  arrive(): void {
    this.#reach(0);
  }

  #reach(place: number): void {
    const { place: before, at } = this.#mark;
    const [now, advance] = [performance.now(), before - place];
    if (advance > 0) this.#pace = (now - at) / advance;
    else if (advance === 0 && place > 0) this.#pace = Math.max(this.#pace, now - at);
    if (advance !== 0) this.#mark = { place, at: now };
  }
}

const clamped = (value: number, least: number, most: number): number => Math.min(Math.max(value, least), most);
