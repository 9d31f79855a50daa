import type { Lease, PoolSpec, Request } from "../../../provider/ipam/types";
import { ranges } from "../../contract/fixture";
import type { Run } from "./promise-engine";

/** A pool of a stack's own program: it is created before its leases, and deleted after them. */
export class OwnPool {
  /** Its lease id in the state file. */
  #leaseId: string | undefined;
  readonly name: string;
  readonly #childPool: PoolSpec;

  constructor(
    stack: string,
    private readonly place: string,
  ) {
    this.name = `pool/${stack}`;
    this.#childPool = { name: this.name, kind: "id", ranges: ranges("1-3"), allocation: "random" };
    this.#owner = `scope/urn:pulumi:${stack}::project::overlay:index:IPPool::${stack}`;
  }

  readonly #owner: string;

  #request(program: string): Request {
    const values = ranges(this.place);
    const from = { program, declared: values };
    return { pool: SPACE, owner: this.#owner, type: "IPPool", values, childPool: this.#childPool, ...from };
  }

  /** The lease that it holds, or an offer. */
  async check(run: Run, program: string, inUp: boolean): Promise<Lease> {
    const lease = this.#leaseId === undefined ? undefined : await run.find({ pool: SPACE, leaseId: this.#leaseId });
    if (!lease) return run.offer(this.#request(program), { inUp });
    await run.markKept(lease);
    return lease;
  }

  async up(run: Run, program: string, step: () => void): Promise<void> {
    step();
    const { leaseId, deletingSince } = await this.check(run, program, true);
    step();
    if (leaseId !== this.#leaseId) {
      const claimed = await run.claim(this.#request(program));
      step();
      this.#leaseId = claimed.leaseId;
    } else if (deletingSince !== undefined)
      await run.change(SPACE, leaseId, { deleting: false, childPool: this.#childPool });
  }

  async delete(run: Run, step: () => void): Promise<void> {
    const leaseId = this.#leaseId;
    if (leaseId === undefined) return;
    if (await run.find({ pool: SPACE, leaseId })) {
      step();
      await run.change(SPACE, leaseId, { deleting: true });
      step();
      await run.close(SPACE, leaseId);
      step();
      await run.release(SPACE, leaseId);
    }
    step();
    this.#leaseId = undefined;
  }
}

const SPACE = "space/id";
