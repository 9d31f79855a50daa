import { isDeepStrictEqual } from "node:util";
import { overlapsAny } from "./ranges";
import type { Lease, Port, ValueRange } from "./types";

/**
 * Ports of resources that one run keeps, with the changes that it plans. A port that one resource releases goes to no other one in the same
 * run: whether it is free already depends on the order of an up, and preview refuses it. A preview does not store the ports that a change in
 * place adds, so they are kept here.
 */
export class PlannedPorts {
  readonly #byUid = new Map<string, { before: Lease; planned: Port[] }>();

  /** `before`: the lease as it was when its resource was checked. */
  plan(before: Lease, planned: Port[]): void {
    this.#byUid.set(before.uid, { before, planned });
  }

  /** Another resource with one of these ports on the same values. `except`: owners that are the same resource. */
  findHolder(
    { pool, uid, ranges }: Lease,
    ports: Port[],
    except: (string | undefined)[],
  ): { holder: Lease; port: Port; range: ValueRange } | undefined {
    for (const { before, planned } of ports.length > 0 ? this.#byUid.values() : []) {
      if (before.pool !== pool || before.uid === uid || except.includes(before.owner)) continue;
      const range = ranges.find((each) => overlapsAny(before.ranges, each));
      const held = [...planned, ...(before.ports ?? [])];
      const port = range && ports.find((each) => held.some((other) => isDeepStrictEqual(each, other)));
      if (port) return { holder: before, port, range };
    }
    return undefined;
  }
}
