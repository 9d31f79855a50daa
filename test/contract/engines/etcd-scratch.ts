import { LocalIpam } from "../../../provider/ipam/ipam";
import { openEtcd } from "../../../provider/ipam/store/etcd/engine";
import { openEtcdStore } from "../../../provider/pool/engines/etcd/store";
import { StoredPool } from "../../../provider/pool/pool";
import { by, createPool, extents } from "../fixture";
import { startEtcd } from "../servers/etcd";

import { State } from "../../../provider/ipam/decide/state";
if (process.env.PREFETCH) {
  const absorb = State.prototype.absorb;
  State.prototype.absorb = function (this: any, queries: any, rows: any) {
    const locked = this.locked === "all" ? [] : [...(this.locked ?? [])];
    return absorb.call(this, [...queries, ...locked.map((name: string) => ({ of: "pool", name }))], rows);
  } as any;
}
const prefetching = (engine: any) => {
  if (process.env.PREFETCH) {
    const begin = engine.begin.bind(engine);
    engine.begin = (queries: any[], locks: any) => begin([...queries, { of: "free", pool: "pool/p", zone: "a", from: 0n, limit: 8 }], locks);
  }
  return engine;
};
async function main() {
  const cluster = await startEtcd("disk", { size: 1 });
  const terms = { offerTtl: 3600, quarantine: 300 };
  try {
    const sides: Record<string, () => Promise<any>> = {
      tables: async () => new LocalIpam(prefetching(await openEtcd(`etcd://${cluster.hosts}/t${Math.random()}`)), terms),
      today: async () => new StoredPool(await openEtcdStore(`etcd://${cluster.hosts}/o${Math.random()}`), terms),
    };
    for (const round of [1, 2, 3])
      for (const [name, open] of Object.entries(sides)) {
        const pool = await open();
        await createPool(pool, { extents: extents("10.0.0.0/18") });
        for (let i = 0; i < 20; i++) await pool.claim(by(`w${i}`));
        let started = performance.now();
        const N = 200;
        for (let i = 0; i < N; i++) await pool.claim(by(`a${i}`));
        const alone = (N / (performance.now() - started)) * 1000;
        started = performance.now();
        await Promise.all(Array.from({ length: 1000 }, (_, i) => pool.claim(by(`b${i}`))));
        const together = (1000 / (performance.now() - started)) * 1000;
        started = performance.now();
        for (let i = 0; i < 100; i++) await pool.claim(by(`a${i}`));
        const again = (100 / (performance.now() - started)) * 1000;
        console.log(round, name, alone.toFixed(0), together.toFixed(0), "again", again.toFixed(0));
        
        await pool.end();
      }
  } finally {
    await cluster.stop();
  }
}
main();
