import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Lab } from "../../lab/lab";
import { openEngine, openIpam } from "../../provider/ipam";
import { LocalIpam } from "../../provider/ipam/ipam";
import { Session } from "../../provider/ipam/session";
import { FakeFleet } from "../../test/unit/lifecycle/fake-fleet";
import { EngineProcess } from "./engine-process";
import { EngineStack } from "./engine-stack";
import { FuzzSession } from "./session";
import { FuzzStack } from "./stack";
import { type StoreName, startStore } from "./store";

/** What sessions run on. Each session has an empty store of its own, and hosts of its own. */
export interface Ground {
  /** Hosts that can be runners; none: there are no hosts. */
  runners: string[];
  inSession<T>(act: (session: FuzzSession) => Promise<T>): Promise<T>;
  stop(): Promise<void>;
}

const SETTINGS = { offerTtl: 3600, quarantine: 300 };

/** The `pulumi` CLI, on this store, with a lab if there are runners. */
export async function prepareCli(storeName: StoreName, runners: string[]): Promise<Ground> {
  const store = await startStore(storeName);
  return {
    runners,
    inSession: async (act) => {
      const home = mkdtempSync(join(tmpdir(), "overlay-fuzz-"));
      const url = await store.create();
      const lab = runners.length > 0 ? await Lab.up({ runners: runners.length }) : undefined;
      try {
        const newStack = (name: string) => new FuzzStack(home, name, url, lab);
        return await act(new FuzzSession(newStack, () => openIpam(url, SETTINGS)));
      } finally {
        await lab?.down();
        await store.drop(url);
        rmSync(home, { recursive: true, force: true });
      }
    },
    stop: () => store.stop(),
  };
}

/** Pulumi's engine, on stores and hosts in memory. */
export async function prepareEngine(runners: string[]): Promise<Ground> {
  const engine = await EngineProcess.start();
  let sessions = 0;
  return {
    runners,
    inSession: async (act) => {
      let passed = 0;
      const tables = await openEngine("memory:", { clock: () => Date.now() + passed });
      const ipam = new LocalIpam(new Session(tables, SETTINGS));
      const pass = (milliseconds: number) => {
        passed += milliseconds;
      };
      const ground = { ipam, fleet: new FakeFleet(), pass };
      const session = String(++sessions);
      const newStack = (name: string) => new EngineStack(engine, session, ground, name);
      return act(new FuzzSession(newStack, async () => ipam.session({}))).finally(() => ipam.end());
    },
    stop: async () => engine.stop(),
  };
}
