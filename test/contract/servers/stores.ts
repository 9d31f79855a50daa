import type { Store } from "../../../provider/pool/storage/store";

/** Closes the stores that a test has left open. */
export class OpenStores {
  readonly #open = new Set<Store>();

  add(store: Store): Store {
    this.#open.add(store);
    const close = () => {
      this.#open.delete(store);
      return store.close();
    };
    return { ...store, close };
  }

  async closeAll(): Promise<void> {
    const stores = [...this.#open];
    this.#open.clear();
    await Promise.all(stores.map((store) => store.close()));
  }
}
