import { openIpam } from "../../provider/ipam";

/** A worker process that claims, uses and releases: `lease-worker.ts URL NAME COUNT`. Prints the leases that it holds at the end. */
async function main([url, name, count]: string[]): Promise<void> {
  const pool = await openIpam(url!, { offerTtl: 3600, quarantine: 0 });
  const claim = (i: number) => pool.claim({ pool: "pool/p", owner: `${name} ${i}`, type: "IPReservation" });
  const leases = [];
  for (let i = 0; i < Number(count); i += 5) {
    const group = await Promise.all([0, 1, 2, 3, 4].map((more) => claim(i + more)));
    await pool.release("pool/p", group[0]!.leaseId);
    leases.push(...group.slice(1));
  }
  await pool.end();
  process.stdout.write(JSON.stringify(leases.map(({ extents, leaseId }) => [String(extents[0]!.first), leaseId])));
}

main(process.argv.slice(2));
