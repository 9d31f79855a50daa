import { afterAll, afterEach, beforeAll, describe, vi } from "vitest";
import { etcdStore } from "../../provider/pool/stores/etcd";
import { contract } from "./contract";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import { OpenStores } from "./servers/stores";

vi.setConfig({ testTimeout: 30_000 });

describe.skipIf(etcdMissing)(`etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  const stores = new OpenStores();
  let cluster: EtcdCluster;
  let prefixes = 0;
  beforeAll(async () => {
    cluster = await startEtcd("memory");
  }, 60_000);
  afterEach(() => stores.closeAll());
  afterAll(() => cluster?.stop());

  const open = async (clock?: () => number) =>
    stores.add(await etcdStore(`etcd://${cluster.hosts}/p${prefixes++}`, clock && { clock }));
  contract({ name: "etcd", open });
});
