import { SortedMap } from "../../storage/sorted-map";
import { createMutex, type Row, type Store, type Tx, type Write } from "../../storage/store";

/** For tests and dry runs: everything in this process, and time as the caller likes it. */
export function createMemoryStore(clock: () => number = Date.now): Store {
  const rows = new SortedMap<string>();
  const mutex = createMutex();

  const apply = ([key, value]: Write): Write => {
    const before = rows.get(key) ?? null;
    if (value === null) rows.delete(key);
    else rows.set(key, value);
    return [key, before];
  };

  const txWith = (undo: Write[]): Tx => ({
    now: clock,
    get: (key) => rows.get(key),
    range: (from, to, limit) => firstOf(rows.entries(from, to), limit),
    write: (writes) => {
      for (const write of writes) undo.push(apply(write));
    },
  });

  return {
    readOnly: false,
    transact: (work) =>
      mutex(async () => {
        const undo: Write[] = [];
        try {
          return await work(txWith(undo));
        } catch (error) {
          for (const write of undo.reverse()) apply(write);
          throw error;
        }
      }),
    read: (work) => mutex(() => work(txWith([]))),
    close: async () => {},
  };
}

function firstOf(entries: Iterable<Row>, limit: number): Row[] {
  const found: Row[] = [];
  if (limit > 0) {
    for (const row of entries) {
      if (found.push(row) === limit) break;
    }
  }
  return found;
}
