import { LocalIpam } from "../../../provider/ipam/ipam";
import { openEtcd } from "../../../provider/ipam/store/etcd/engine";
import { EtcdKv } from "../../../provider/ipam/store/etcd/kv";
import { by, createPool, extents } from "../fixture";
import { startEtcd } from "../servers/etcd";

const terms = { offerTtl: 3600, quarantine: 300 };
async function main() {
  const cluster = await startEtcd("disk", { size: 1 });
  const pool: any = new LocalIpam(await openEtcd(`etcd://${cluster.hosts}/t`), terms);
  await createPool(pool, { extents: extents("10.0.0.0/18") });
  for (let i = 0; i < 50; i++) await pool.claim(by(`w${i}`));
  const proto = EtcdKv.prototype as any;
  for (const name of ["txn", "getAt"]) {
    const real = proto[name];
    proto[name] = async function (...args: any[]) {
      const s = performance.now();
      const r = await real.apply(this, args);
      console.log(
        name,
        (performance.now() - s).toFixed(2),
        name === "txn" ? `${args[0].length} ${args[1].length}` : args[1].length,
      );
      return r;
    };
  }
  const { EtcdTransaction } = await import("../../../provider/ipam/store/etcd/transaction");
  const load = EtcdTransaction.prototype.load;
  EtcdTransaction.prototype.load = function (q: any) {
    console.log("load", q);
    return load.call(this, q);
  };
  for (let i = 0; i < 2; i++) {
    const s = performance.now();
    await pool.claim(by(`a${i}`));
    console.log("claim", (performance.now() - s).toFixed(2));
  }
  const s = performance.now();
  await pool.claim(by(`a1`));
  console.log("renew", (performance.now() - s).toFixed(2));
  await pool.offer(by(`o1`));
  await pool.end();
  await cluster.stop();
}
main();
