import { OverlayError } from "../errors";
import type { InspectResult } from "../host/reconcile/requests";
import type { RunPlan } from "../ipam/run-plan";
import { dataEntries, type Lease } from "../ipam/types";
import type { Item } from "../network/model/items";
import { NO_PYTHON, PHASES_WITH_BOTH, type Phase } from "../network/plan/tunnel-change";
import { readTunnelEnd, type TunnelEnd } from "../network/plan/tunnels/tunnel-end";
import { KEYS, keyName } from "../pool-names";
import { changeOwned, type OwnedLease } from "./lease";
import { isEqual } from "./values";

/** What the lease of a network or runner holds of its host. Names of leases are unique, so no two leases have one public key. */

/** Before hosts change: `KEY_DUPLICATE` if another lease has the key. The key of a tunnel that is still in use stays. */
export async function claimKey(pool: RunPlan, owned: OwnedLease, { publicKey }: TunnelEnd): Promise<void> {
  if (publicKey === undefined) return;
  const { names = [] } = await findOwned(pool, owned);
  if (names.includes(keyName(publicKey))) return;
  await changeOwned(pool, owned, { names: [...names, keyName(publicKey)] });
}

/** After hosts have changed. */
export async function storeTunnelEnd(pool: RunPlan, owned: OwnedLease, end: TunnelEnd): Promise<void> {
  const lease = await findOwned(pool, owned);
  const others = lease.names?.filter((name) => !name.startsWith(KEYS)) ?? [];
  const names = end.publicKey === undefined ? others : [...others, keyName(end.publicKey)];
  if (isEqual(readTunnelEnd(lease), end) && isEqual(lease.names ?? [], names)) return;
  await changeOwned(pool, owned, { names, data: { ...dataEntries(lease), tunnel: end } });
}

const findOwned = async (pool: RunPlan, { pool: name, leaseId }: OwnedLease): Promise<Partial<Lease>> =>
  (await pool.ipam.find({ pool: name, leaseId })) ?? {}; // a lease that is gone is refused by `changeOwned`

/** Runs the phases of network/plan/tunnel-change.ts on the hosts of a runner. */

export interface TunnelHosts {
  apply(role: string, items: Item[]): Promise<InspectResult>;
  /** Whether the host has exactly these items. */
  has(role: string, items: Item[]): Promise<boolean>;
  /** Runs a script on the runner. */
  run(script: string): Promise<{ code: number; stderr: string }>;
  warn(text: string): void;
}

interface Scripts {
  probe: string;
  announce?: string;
  /** For errors. */
  what: string;
}

/** Returns what the hub and the runner have in the end. */
export async function changeTunnel(phases: Phase[], { probe, announce, what }: Scripts, hosts: TunnelHosts) {
  const probeIndex = phases.findIndex(({ next }) => next === "probe");
  const found = await findFirstUndone(phases, hosts);
  const passes = async (): Promise<boolean> => (await hosts.run(probe)).code === 0;
  const canGoBack = found > probeIndex && found <= PHASES_WITH_BOTH;
  const first = canGoBack && !(await passes()) ? 0 : found;
  const seen = new Map<string, InspectResult>();
  for (const { role, items, next } of phases.slice(first)) {
    seen.set(role, await hosts.apply(role, items));
    if (next === "probe" && !(await passes())) throw probeError(what);
    if (next === "announce" && announce) {
      const { code, stderr } = await hosts.run(announce);
      if (code !== 0) hosts.warn(announceWarning(what, code, stderr));
    }
  }
  return seen;
}

/** The hosts show how far an earlier run has come. */
async function findFirstUndone(phases: Phase[], hosts: TunnelHosts): Promise<number> {
  const isAt = await Promise.all(phases.map(({ role, items }) => hosts.has(role, items)));
  const next = isAt.lastIndexOf(true) + 1;
  return Math.min(next, phases.length - 1);
}

const probeError = (what: string): OverlayError =>
  new OverlayError(
    "VERIFY_FAILED",
    `${what} is prepared, but full-size packets between runner and hub do not pass by it. Packets still take the former tunnel, and both stay.`,
    "Look for a firewall that drops its UDP port, a smaller MTU on the way (set mtu), or IPv6 that is disabled on one of the hosts; then run up again. Or declare the former tunnel again.",
  );

const announceWarning = (what: string, code: number, stderr: string): string =>
  `${what}: workloads were not told which host now answers for the hub's address (${code === NO_PYTHON ? "there is no python3 on the runner" : stderr.trim()}). Those that sent to it directly lose packets for some seconds.`;
