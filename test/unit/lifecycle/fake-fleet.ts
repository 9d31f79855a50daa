import { createHash } from "node:crypto";
import { OverlayError } from "../../../provider/errors";
import type { Connection } from "../../../provider/host/connection";
import type { Fleet } from "../../../provider/host/fleet";
import type { RunPlan } from "../../../provider/ipam/run-plan";
import { isSignedHere } from "../../../provider/ipam/token";
import type { Dependencies } from "../../../provider/lifecycle/dependencies";
import { MeshRunners } from "../../../provider/lifecycle/mesh";
import type { Container } from "../../../provider/network/model/facts";
import { type Item, itemKey } from "../../../provider/network/model/items";
import { readSettings } from "../../../provider/settings";

/** This fleet and this pool, with the default of every setting. */
export const fakeDependencies = (fleet: Fleet, pool: RunPlan): Dependencies => ({
  pool: async () => pool,
  fleet,
  mesh: new MeshRunners(),
  unreachableOnDelete: "fail",
  warn: () => {},
  note: () => {},
  tenantDefaults: readSettings(() => undefined).tenantDefaults,
  token: async (lease) => (await pool.ipam.signTokens([lease]))[0]!,
  isSignedHere: (token) => isSignedHere(token, pool.ipam),
});

/** In the form of a public key of WireGuard. */
const testKey = (seed: string): string => createHash("sha256").update(seed).digest("base64");

/** Hosts in memory: they have items and records, can be down, and record writes. */
export class FakeFleet implements Fleet {
  readonly items = new Map<string, Map<string, Item>>();
  readonly owners = new Map<string, Map<string, string[]>>();
  readonly writes: string[] = [];
  readonly contacted: string[] = [];
  readonly down = new Set<string>();
  /** Hosts that refuse every change. */
  readonly refuses = new Set<string>();
  readonly conversations: string[] = [];
  /** Containers on the Docker network of each host. */
  readonly containers = new Map<string, Container[]>();
  /** Public keys of hosts that have made one. */
  readonly keys = new Map<string, string>();
  readonly #written = new Set<string>();

  #reach({ host }: Connection): string {
    this.contacted.push(host);
    if (this.down.has(host)) throw new OverlayError("SSH_UNREACHABLE", `${host} does not answer.`, "Start it.");
    if (!this.items.has(host)) this.items.set(host, new Map());
    if (!this.owners.has(host)) this.owners.set(host, new Map());
    return host;
  }

  checkKey: Fleet["checkKey"] = async () => {};

  ask: Fleet["ask"] = async (connection, question) => {
    const host = this.#reach(connection);
    const { underlayIp, keyFile, makeKey } = await question;
    if (keyFile !== undefined && makeKey) this.keys.set(host, this.keys.get(host) ?? testKey(`${host} ${keyFile}`));
    const publicKey = keyFile === undefined ? undefined : this.keys.get(host);
    return { underlayIp: underlayIp ?? host, underlayMtu: 1500, ...(publicKey && { publicKey }) };
  };

  #begin(action: string, connection: Connection): string {
    const host = this.#reach(connection);
    this.conversations.push(`${action} ${host}`);
    if (this.refuses.has(host)) throw new OverlayError("DEVICE_FOREIGN", `${host} refuses.`, "Rename the device.");
    return host;
  }

  check: Fleet["check"] = async (connection) => {
    this.#begin("check", connection);
    return { differences: [], foreign: [], neighbours: [], containers: [], tunnels: [], peerMoves: false };
  };

  apply: Fleet["apply"] = async (connection, { record, items, fence, accepted }) => {
    const host = this.#begin("apply", connection);
    await fence();
    accepted?.(false);
    const [have, owners] = [this.items.get(host)!, this.owners.get(host)!];
    const mine = owners.get(record.uid) ?? [];
    owners.delete(record.uid);
    if (items.length > 0) owners.set(record.uid, items.map(itemKey));
    if (items.length > 0) this.#written.add(`${host} ${record.uid}`);
    const kept = new Set([...owners.values()].flat());
    for (const key of mine) if (!kept.has(key) && have.delete(key)) this.writes.push(`${host}: - ${key}`);
    for (const item of items) {
      if (JSON.stringify(have.get(itemKey(item))) === JSON.stringify(item)) continue;
      have.set(itemKey(item), item);
      this.writes.push(`${host}: + ${itemKey(item)}`);
    }
    return {
      differences: [],
      foreign: [],
      neighbours: [],
      containers: this.containers.get(host) ?? [],
      tunnels: [],
      peerMoves: false,
    };
  };

  inspect: Fleet["inspect"] = async (connection, { items }) => {
    const host = this.#reach(connection);
    const lacking = items.filter((item) => !this.items.get(host)!.has(itemKey(item)));
    const differences = lacking.map((item) => ({ item, missing: true, wrong: [] }));
    return {
      differences,
      foreign: [],
      neighbours: [],
      containers: this.containers.get(host) ?? [],
      tunnels: [],
      peerMoves: false,
    };
  };

  wasWritten: Fleet["wasWritten"] = ({ host }, uid) => this.#written.has(`${host} ${uid}`);

  run: Fleet["run"] = async (connection) => {
    this.#reach(connection);
    return { code: 0, stdout: "", stderr: "" };
  };

  /** Keys of the items of a host. */
  itemsOn(host: string): string[] {
    return [...(this.items.get(host)?.keys() ?? [])];
  }

  takeWrites(): string[] {
    return this.writes.splice(0);
  }
}
