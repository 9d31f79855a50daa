import { cpSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, vi } from "vitest";
import { contract } from "./contract";
import { retentionContract } from "./retention";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import { crashContract, processContract, restoreContract } from "./servers/shared";
import { urlEngine } from "./url-engine";

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

describe.skipIf(etcdMissing)(`etcd${etcdMissing ? `: ${etcdMissing}` : ""}`, () => {
  let cluster: EtcdCluster;
  let prefixes = 0;
  beforeAll(async () => {
    cluster = await startEtcd("memory");
  });
  afterAll(() => cluster?.stop());

  const newUrl = () => `etcd://${cluster.hosts}/p${prefixes++}`;
  contract(urlEngine("etcd", newUrl));
  retentionContract(urlEngine("etcd", newUrl));
  processContract(newUrl);

  describe("the leader", () => {
    let durable: EtcdCluster;
    beforeAll(async () => {
      durable = await startEtcd("disk");
    });
    afterAll(() => durable?.stop());
    const killLeader = async () => {
      const leader = await durable.leader();
      await durable.members[leader]!.kill("SIGKILL");
      await vi.waitFor(async () => expect(await durable.leader()).not.toBe(-1), { timeout: 15_000, interval: 100 });
      await durable.start(leader);
    };
    crashContract("is killed", () => `etcd://${durable.hosts}/crash`, killLeader);
  });

  describe("a copy of the data", () => {
    let single: EtcdCluster;
    beforeAll(async () => {
      single = await startEtcd("memory", { size: 1 });
    });
    afterAll(() => single?.stop());
    const whileStopped = async (work: () => void) => {
      await single.members[0]!.kill("SIGKILL");
      work();
      await single.start(0);
    };
    const backUp = async () => {
      const { folder } = single.members[0]!;
      const [data, copy] = [join(folder, "data"), join(folder, `copy${prefixes++}`)];
      await whileStopped(() => cpSync(data, copy, { recursive: true }));
      const restore = () => {
        rmSync(data, { recursive: true });
        cpSync(copy, data, { recursive: true });
      };
      return () => whileStopped(restore);
    };
    restoreContract({ newUrl: () => `etcd://${single.hosts}/r${prefixes++}`, backUp });
  });
});
