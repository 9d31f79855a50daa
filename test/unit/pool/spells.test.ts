import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Turn } from "../../../provider/pool/stores/journal";
import { Rhythm, Spell } from "../../../provider/pool/stores/spell";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const [VERSION, COMMIT] = [
  { number: 1, id: "one", at: 0 },
  { number: 2, id: "two", at: 0, writes: [] },
];

/** A turn that says what it was told. `head`: why a commit is refused. */
function aTurn({ head = undefined as typeof VERSION | undefined, lasts = true } = {}): { turn: Turn; told: string[] } {
  const told: string[] = [];
  const turn: Turn = {
    latest: { head: VERSION },
    lasts,
    news: async () => ({ head: VERSION }),
    findId: async () => undefined,
    rows: async () => [],
    commit: async (_from, _commit, _hoped, goesOn) => {
      told.push(goesOn ? "commit and stay" : "commit and go");
      return head && { head };
    },
    end: async () => void told.push("end"),
  };
  return { turn, told };
}

/** One question, which takes some time and commits within the spell. */
async function ask(spell: Spell, rhythm: Rhythm, milliseconds = 1): Promise<boolean> {
  return rhythm.of(async () => {
    const isOurs = spell.goOn();
    if (!isOurs) return false;
    vi.advanceTimersByTime(milliseconds);
    await spell.commit(VERSION, COMMIT, []);
    spell.pause();
    return true;
  });
}

test("who asks once gives its turn up with the commit", async () => {
  const [{ turn, told }, rhythm] = [aTurn(), new Rhythm()];
  await ask(new Spell(turn, rhythm), rhythm);
  expect(told).toEqual(["commit and go", "end"]);
});

test("who asks again at once keeps its turn, until nothing more comes", async () => {
  const [{ turn, told }, rhythm] = [aTurn(), new Rhythm()];
  await rhythm.of(async () => {});
  const spell = new Spell(turn, rhythm);
  for (let i = 0; i < 3; i++) expect(await ask(spell, rhythm)).toBe(true);
  expect(told).toEqual(["commit and stay", "commit and stay", "commit and stay"]);
  vi.advanceTimersByTime(50);
  expect(told.at(-1)).toBe("end");
  expect(await ask(spell, rhythm)).toBe(false);
});

test("nobody keeps it for ever", async () => {
  const [{ turn, told }, rhythm] = [aTurn(), new Rhythm()];
  await rhythm.of(async () => {});
  const spell = new Spell(turn, rhythm);
  for (let i = 0; i < 1000 && (await ask(spell, rhythm, 10)); i++);
  expect(told.length).toBeLessThan(20);
  expect(told.slice(-2)).toEqual(["commit and go", "end"]);
});

test("a commit that somebody else was ahead of ends it; one that hoped in vain does not", async () => {
  for (const [head, after] of [
    [{ ...VERSION, id: "another" }, ["commit and stay", "end"]],
    [VERSION, ["commit and stay"]],
  ] as const) {
    const [{ turn, told }, rhythm] = [aTurn({ head }), new Rhythm()];
    await rhythm.of(async () => {});
    await ask(new Spell(turn, rhythm), rhythm);
    expect(told).toEqual(after);
  }
});

test("a turn that cannot last is given up with every commit", async () => {
  const [{ turn, told }, rhythm] = [aTurn({ lasts: false }), new Rhythm()];
  await rhythm.of(async () => {});
  await ask(new Spell(turn, rhythm), rhythm);
  expect(told).toEqual(["commit and go", "end"]);
});
