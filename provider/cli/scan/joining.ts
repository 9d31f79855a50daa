import { isOverlayError, OverlayError } from "../../errors";
import type { Pool } from "../../pool";
import { describePool } from "../../pool-names";
import { type Exported, factOf } from "../exports";

/**
 * A stack knows more of a resource than machines do, so machines add only what no export has. Both must agree on who
 * holds what: a record that says otherwise is a sign that one of them is not of today.
 */
export async function joined(pool: Pool, exported: Exported[], recorded: Exported[]): Promise<Exported[]> {
  const byUid = new Map(exported.map((each) => [each.props.uid, each]));
  const contradicting = recorded.filter((each) => {
    const other = byUid.get(each.props.uid);
    return other && !agree(other, each);
  });
  if (contradicting.length > 0) throw disagreeing(contradicting, byUid);
  const added = recorded.filter(({ props }) => !byUid.has(props.uid));
  return [...exported, ...(await Promise.all(added.map((each) => withKnownLease(pool, each))))];
}

const valueIn = (each: Exported): string => {
  const { pool, want } = factOf(each);
  return `${want.map(({ first, last }) => (first === last ? first : `${first}-${last}`)).join(", ")} in ${describePool(pool)}`;
};
const agree = (a: Exported, b: Exported): boolean => a.props.owner === b.props.owner && valueIn(a) === valueIn(b);

function disagreeing(contradicting: Exported[], byUid: Map<string, Exported>): OverlayError {
  const lines = contradicting.map((each) => {
    const other = byUid.get(each.props.uid)!;
    const side = (one: Exported) => `${one.source} says ${one.props.owner} has ${valueIn(one)}`;
    return `\n  ${each.props.uid}: ${side(each)}; ${side(other)}`;
  });
  return new OverlayError(
    "STORE_CONFLICT",
    `${contradicting.length} records on machines contradict the exports; nothing was written.${lines.join("")}\n `,
    "Export the stacks again, or leave out the machine that was left behind.",
  );
}

/** What an earlier run has entered has a lease id by now. */
async function withKnownLease(pool: Pool, each: Exported): Promise<Exported> {
  const lease = await pool.find(factOf(each).pool, { uid: each.props.uid }).catch((error: unknown) => {
    if (isOverlayError(error, "POOL_NOT_FOUND")) return undefined;
    throw error;
  });
  return lease ? { ...each, props: { ...each.props, leaseId: lease.leaseId } } : each;
}
