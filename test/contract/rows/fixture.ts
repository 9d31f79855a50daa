import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { StoredPool } from "../../../provider/pool/pool";
import type { Store } from "../../../provider/pool/storage/store";
import { createFixture, type Engine, type Fixture, type Terms } from "../fixture";

/** An engine whose rows are read and written beside the pool. */
export interface RowEngine extends Engine {
  openStore(url: string, clock: () => number): Promise<Store>;
  /** It keeps to itself what only its operator can mend. */
  isService?: true;
}

export interface RowFixture extends Fixture {
  store: Store;
}

export function memoryRowEngine(): RowEngine {
  const stores = new Map<string, Store>();
  const openStore = async (url: string, clock: () => number) => {
    const store = stores.get(url) ?? createMemoryStore(clock);
    stores.set(url, store);
    return store;
  };
  return {
    name: "memory",
    newUrl: () => `memory:${stores.size}`,
    open: async (url, terms, clock) => new StoredPool(await openStore(url, clock), terms),
    openStore,
  };
}

export async function createRowFixture(engine: RowEngine, settings: Partial<Terms> = {}): Promise<RowFixture> {
  const opened: Promise<Store>[] = [];
  const open: Engine["open"] = (url, terms, clock) => {
    if (opened.length === 0) opened.push(engine.openStore(url, clock));
    return engine.open(url, terms, clock);
  };
  const fixture = await createFixture({ ...engine, open }, settings);
  return { ...fixture, store: await opened[0]! };
}
