import { LocalOperations, type LocalSettings } from "./local-operations";
import { PoolRun, type RunSettings } from "./run";
import type { Store } from "./storage/store";

export interface Settings extends LocalSettings, RunSettings {}

/** The pool on a store, as one run. */
export class StoredPool extends PoolRun {
  constructor(store: Store, settings: Settings) {
    super(new LocalOperations(store, settings), settings);
  }
}
