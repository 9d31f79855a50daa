import { isDeepStrictEqual } from "node:util";
import { OverlayError } from "../../errors";
import { isMine, ownedItems } from "../../network/diff/ownership";
import { sumOf } from "../../network/kinds/file";
import type { Difference } from "../../network/kinds/kind";
import type { Facts } from "../../network/model/facts";
import {
  type HostRecord,
  type Item,
  keyOf,
  lists,
  OUR_ZONE,
  ROUTE_PROTOCOL,
  recorded,
} from "../../network/model/items";
import { RECORDS, recordPath, SERVICES, scriptPath, unitPath } from "../../network/model/paths";
import { recordText } from "../../network/model/record";
import type { Want } from "../../network/model/steps";
import { renderRecords } from "../../network/render/script";
import type { RecordWork, Work } from "./types";

export const recordOf = (want: Want): HostRecord => ({ ...want.record, items: want.items.map(recorded) });

export const recordsOf = (want: Want, facts: Facts): HostRecord[] =>
  facts.records.filter((record) => isMine(record, want));

/** As JSON, in which the order of fields does not count. */
const isSame = (a: HostRecord, b: HostRecord): boolean => isDeepStrictEqual(asJson(a), asJson(b));
const asJson = (record: HostRecord): unknown => JSON.parse(JSON.stringify(record));

/**
 * The record is written before the first change, with what stands and what shall stand, and cut to what shall stand
 * after the last: whenever the conversation is cut off, everything of ours on the host is in a record.
 */
export function planRecord(want: Work, facts: Facts): RecordWork {
  const old = recordsOf(want, facts);
  const { items } = recordOf(want);
  const keys = new Set(items.map(keyOf));
  const rest = new Map(old.flatMap((record) => record.items.map((item) => [keyOf(item), item])));
  const union = { ...want.record, items: [...items, ...[...rest.values()].filter((item) => !keys.has(keyOf(item)))] };
  const isWritten = want.items.length === 0 || old.some((record) => isSame(record, recordOf(want)));
  const invalid = invalidFileOf(want, facts);
  return { want, union: isWritten ? [] : [union], aside: invalid && want.items.length > 0 ? [invalid] : [] };
}

/** Whether the record was seen on the host after it was written. */
export const isWritten = ({ union: [union] }: RecordWork, after: Facts): boolean =>
  union === undefined ||
  after.files.get(recordPath(union)) === sumOf(recordText(union)) ||
  after.records.some((record) => isSame(record, union));

/** For work whose change was seen to be there: the script that cuts its records, and removes those of what is gone. */
export function renderSettled(passed: RecordWork[], facts: Facts): string | undefined {
  const final = passed.flatMap(({ want, union: [union] }) =>
    union && union.items.length > want.items.length ? [recordOf(want)] : [],
  );
  const gone = passed.flatMap(({ want }) => {
    const earlier = recordsOf(want, facts).filter(({ uid }) => uid !== want.record.uid);
    return want.items.length === 0 && hasTraces(want, facts) ? [...earlier, want.record] : earlier;
  });
  return final.length + gone.length > 0 ? renderRecords(final, gone) : undefined;
}

const hasTraces = (want: Want, facts: Facts): boolean =>
  ownedItems(want, facts).length > 0 ||
  invalidFileOf(want, facts) !== undefined ||
  facts.files.has(scriptPath(want.record));

/** Records of this network whose lease is gone, and that are of the same resource or list what only one can have. */
export async function earlierLives(want: Work, facts: Facts): Promise<string[]> {
  const unique = want.items.filter(({ kind }) => kind === "link" || kind === "address");
  const { uid, owner, network, store } = want.record;
  const candidates = facts.records.filter(
    (record) =>
      record.uid !== uid &&
      record.network === network &&
      record.store === store &&
      (record.owner === owner || unique.some((item) => lists(record, item))),
  );
  const gone = await Promise.all(candidates.map((record) => want.isGone(record.uid)));
  return candidates.filter((_, i) => gone[i]).map((record) => record.uid);
}

/** What to tell about files among the records that are none. Those of `wants` are moved aside and written again. */
export function invalidWarnings(host: string, wants: Want[], facts: Facts): string[] {
  const own = new Set(wants.map(({ record }) => recordPath(record)));
  return facts.invalidRecords.map(({ file, reason }) =>
    own.has(file)
      ? `${host}: ${file} is not a record (${reason}). It is kept as ${file}.invalid-TIME, and the record is written again.`
      : `${host}: ${file} is not a record (${reason}). \`pulumi up --refresh\` of its owner's stack writes it again. Until then chains, forwarding and units that it may share with others stay.`,
  );
}

/** Warns of Docker networks that may be left: there is no record, and dockerd does not answer. `wants`: before they are fitted to the host. */
export function dockerWarnings(host: string, wants: Want[], { docker, records }: Facts): string[] {
  if (!docker || docker.answers) return [];
  return wants
    .filter(({ record, items }) => items.length === 0 && !records.some(({ uid }) => uid === record.uid))
    .flatMap(({ planned = [] }) => planned)
    .filter((item) => item.kind === "docker")
    .map(
      ({ name, bridge }) =>
        `${host}: dockerd does not answer and there is no record, so it is not known whether it has the network ${name}. If it has, it brings ${bridge} back when it starts: \`docker network rm ${name}\`.`,
    );
}

/** Refuses a removal without a record and without a plan: what the owner has left on the host cannot be told. */
export function refuseUnplanned({ record, items, planned, planError }: Work, facts: Facts): void {
  const isListed = facts.records.some(({ uid }) => uid === record.uid);
  if (items.length > 0 || planned || !planError || isListed) return;
  throw new OverlayError(
    "RECORD_LOST",
    `${recordPath(record)} is missing, and what is to be removed there cannot be planned: ${planError.what}`,
    `Make that machine answer and try again. If it is gone for good, look at what is left here (${LOOK.map((command) => `\`${command}\``).join(", ")}), remove what belongs to ${record.network}, take the resource out of the state with \`pulumi state delete\`, and release its values with \`overlayctl gc\`.`,
    planError,
  );
}

/** Show all that can be ours on a host. A device, bridge or Docker network has the name that the resource gave it. */
const LOOK = [
  "ip -d link show type vxlan",
  "ip link show type bridge",
  "ip link show type dummy",
  `ip route show table all proto ${ROUTE_PROTOCOL}`,
  `ip rule show | grep 'proto ${ROUTE_PROTOCOL}'`,
  `ip -6 rule show | grep 'proto ${ROUTE_PROTOCOL}'`,
  "iptables-save | grep OVERLAY-",
  "ip6tables-save | grep OVERLAY-",
  "docker network ls",
  `firewall-cmd --permanent --info-zone=${OUR_ZONE}`,
  "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding",
  `ls -R ${RECORDS}`,
  `ls ${SERVICES.map(unitPath).join(" ")}`,
];

/** An owner's record that is not on the host any more, or is no record. */

/** As drift, named by its file. */
export function recordDifferences(want: Want, facts: Facts): Difference[] {
  const item: Item = { kind: "file", path: recordPath(want.record) };
  if (want.items.length === 0 || facts.records.some(({ uid }) => uid === want.record.uid)) return [];
  const invalid = facts.invalidRecords.find(({ file }) => file === item.path);
  return [{ item, missing: !invalid, wrong: invalid ? [`it is not a record (${invalid.reason})`] : [] }];
}

/** The file that stands in the place of this owner's record. */
export const invalidFileOf = (want: Want, facts: Facts): string | undefined =>
  facts.invalidRecords.find(({ file }) => file === recordPath(want.record))?.file;
