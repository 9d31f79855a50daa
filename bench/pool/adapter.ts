import { openIpam } from "../../provider/ipam";
import { claimOne } from "../../provider/ipam/interface";

/**
 * What the measured processes use of the pool, and nothing else. `--against PATH` measures another checkout through the file of this
 * name in it: `Adapter` stays as it is when names in `provider/` change.
 */
export interface Adapter {
  /** Creates the pool `POOL` with the addresses 172.16.0.0/18; it may exist. */
  createPool(): Promise<void>;
  /** As the check of an up before its claim. */
  offer(pool: string, owner: string): Promise<unknown>;
  claim(pool: string, owner: string): Promise<Claimed>;
  close(): Promise<void>;
}

export interface Claimed {
  value: string;
  release(): Promise<unknown>;
}

export const POOL = "pool/172.16.0.0/18";

export const SETTINGS = { offerTtl: 3600, quarantine: 0 };

export async function openAdapter(url: string): Promise<Adapter> {
  const store = await openIpam(url, SETTINGS);
  const type = "IPReservation";
  return {
    createPool: async () => {
      const ranges = [{ first: 0xffff_ac10_0000n, last: 0xffff_ac10_3fffn }];
      const childPool = { name: POOL, kind: "address", ranges, allocation: "lowest" } as const;
      await store.claim([{ pool: "space/default", owner: "creator", type: "IPPool", values: ranges, childPool }]);
    },
    offer: (pool, owner) => store.offer({ pool, owner, type, program: "bench", inUp: true }),
    claim: async (pool, owner) => {
      const { ranges, leaseId } = await claimOne(store, { pool, owner, type, program: "bench" });
      return { value: ranges[0]!.first.toString(16), release: () => store.release(pool, leaseId) };
    },
    close: () => store.end(),
  };
}
