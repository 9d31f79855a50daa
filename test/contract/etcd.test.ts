import { afterAll, afterEach, beforeAll, describe, vi } from "vitest";
import { etcdStore } from "../../provider/pool/stores/etcd";
import { contract } from "./contract";
import { Cables } from "./servers/cables";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import { serverContract } from "./servers/shared";
import { OpenStores } from "./servers/stores";

vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

describe.skipIf(etcdMissing)(`etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  const stores = new OpenStores();
  let cluster: EtcdCluster;
  let prefixes = 0;
  beforeAll(async () => {
    cluster = await startEtcd("memory");
  });
  afterEach(() => stores.closeAll());
  afterAll(() => cluster?.stop());

  const newUrl = (cables?: Cables) => {
    const ports = cables?.ports ?? cluster.ports;
    return `etcd://${ports.map((port) => `127.0.0.1:${port}`).join(",")}/p${prefixes++}`;
  };
  const open = async (url: string, options = {}) => stores.add(await etcdStore(url, options));

  contract({ name: "etcd", open: (clock) => open(newUrl(), { clock }) });
  serverContract({ newUrl, open, cables: () => Cables.to(cluster.ports) });
});
