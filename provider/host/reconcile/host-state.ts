import { isDeepStrictEqual } from "node:util";
import { isOverlayError, OverlayError } from "../../errors";
import { findOwnedItems, isOwnRecord } from "../../network/diff/ownership";
import { INSPECT_COMMANDS, isUnique, toRecordItem } from "../../network/kinds";
import { compareAccess, sha256 } from "../../network/kinds/file";
import type { Facts } from "../../network/model/facts";
import { type DesiredState, type HostRecord, hasItem, itemKey, type Link } from "../../network/model/items";
import { formatRecord, recordPath, scriptPath } from "../../network/model/record";
import { hasUnlistedPeers } from "../../network/preflight/foreign";
import { hasUnlistedRules } from "../../network/preflight/foreign-rules";
import { FACTS_SCRIPT, inspectScript, parseFacts } from "../../network/read/facts";
import { renderRecords } from "../../network/render/script";
import type { CommandResult, Host } from "../connection";
import { busyboxError } from "../ssh/shell-errors";
import type { ApplyRequest, CheckRequest, RecordChange } from "./requests";

/** Reads a host without its lock; changes nothing. */
export const readHostFacts = async (host: Host, states: DesiredState[] = []): Promise<Facts> =>
  parseHostFacts(host, await host.exec(inspectScript(states), "reading its state"));

export function parseHostFacts(host: Host, { code, stdout, stderr }: CommandResult): Facts {
  if (code === 127) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      `${host.name} has no '${stderr.trim().split("\n").at(-1)}'.`,
      "Install it there (Debian: apt-get install iproute2 iptables coreutils findutils mawk).",
    );
  }
  if (code !== 0) throw commandFailedError(host, String(code), stderr, FACTS_SCRIPT, []);
  return nameHostInErrors(host, () => parseFacts(stdout));
}

export function commandFailedError(
  host: Host,
  code: string,
  stderr: string,
  script: string,
  left: string[],
): OverlayError {
  const busybox = busyboxError(host.name, stderr);
  if (busybox) return busybox;
  const [, number] = /Command failed -:(\d+)/.exec(stderr) ?? [];
  const batch = /^ip -force -batch - <<'END'.*\n([\s\S]*?)\nEND$/m.exec(script)?.[1]?.split("\n") ?? [];
  const command = number ? `'ip ${batch[Number(number) - 1]}'` : "a command";
  const said = stderr.trim().split("\n").slice(0, 4).join("; ") || "no message";
  const observed = left.slice(0, 5).join("; ") + (left.length > 5 ? `; and ${left.length - 5} more` : "");
  if (code === "0" && left.length > 0) {
    return new OverlayError(
      "HOST_COMMAND_FAILED",
      `${host.name}: all commands succeeded, but the host does not have the planned state afterwards: ${observed}.`,
      "Look there for a program that removes or changes it, such as a network manager, and run up again.",
    );
  }
  return new OverlayError(
    "HOST_COMMAND_FAILED",
    `${host.name}: ${command} failed (exit code ${code}): ${said}.${left.length > 0 ? ` Now: ${observed}.` : ""}`,
    "Fix the cause and run up again; it continues from the present state.",
  );
}

/** Runs `work`. If it throws an error about the host, the error gets the host's name. */
export function nameHostInErrors<T>(host: Pick<Host, "name">, work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw isOverlayError(error) ? withHostName(host, error) : error;
  }
}

export const withHostName = ({ name }: Pick<Host, "name">, error: OverlayError): OverlayError =>
  new OverlayError(error.code, `${name}: ${error.what}`, error.fix, error);

export const desiredRecord = (desired: DesiredState): HostRecord => ({
  ...desired.record,
  items: desired.items.map(toRecordItem),
});

const ownRecords = (desired: DesiredState, facts: Facts): HostRecord[] =>
  facts.records.filter((record) => isOwnRecord(record, desired));

/** The order of fields does not count. */
const isSameRecord = (a: HostRecord, b: HostRecord): boolean => isDeepStrictEqual(asJson(a), asJson(b));
const asJson = (record: HostRecord): unknown => JSON.parse(JSON.stringify(record));

/**
 * The record is written before the first change, with all former and desired items, and reduced to the desired ones
 * after the last: whenever the conversation is cut off, everything of ours on the host is in a record.
 */
export function planRecord(desired: ApplyRequest, facts: Facts): RecordChange {
  const old = ownRecords(desired, facts);
  const { items } = desiredRecord(desired);
  const keys = new Set(items.map(itemKey));
  const rest = new Map(old.flatMap((record) => record.items.map((item) => [itemKey(item), item])));
  const union = {
    ...desired.record,
    items: [...items, ...[...rest.values()].filter((item) => !keys.has(itemKey(item)))],
  };
  const isSame = old.some((record) => isSameRecord(record, desiredRecord(desired)));
  const isWritten =
    desired.items.length === 0 || (isSame && compareAccess(recordPath(desired.record), facts).length === 0);
  const invalid = invalidRecordFile(desired, facts);
  return {
    desired,
    written: isWritten ? [] : [union],
    invalidFiles: invalid && desired.items.length > 0 ? [invalid] : [],
  };
}

/** Whether the host has the record. */
export const wasRecordWritten = ({ written: [union] }: RecordChange, after: Facts): boolean =>
  union === undefined ||
  after.files.get(recordPath(union)) === sha256(formatRecord(union)) ||
  after.records.some((record) => isSameRecord(record, union));

/** For verified requests: the script that reduces their records, and removes those of removed owners. */
export function renderFinalRecords(passed: RecordChange[], facts: Facts): string | undefined {
  const final = passed.flatMap(({ desired, written: [union] }) =>
    union && union.items.length > desired.items.length ? [desiredRecord(desired)] : [],
  );
  const gone = passed.flatMap(({ desired }) => {
    const earlier = ownRecords(desired, facts).filter(({ uid }) => uid !== desired.record.uid);
    return desired.items.length === 0 && hasTraces(desired, facts) ? [...earlier, desired.record] : earlier;
  });
  return final.length + gone.length > 0 ? renderRecords(final, gone) : undefined;
}

const hasTraces = (desired: DesiredState, facts: Facts): boolean =>
  findOwnedItems(desired, facts).length > 0 ||
  invalidRecordFile(desired, facts) !== undefined ||
  facts.files.has(scriptPath(desired.record));

/** The devices that these requests want, or remove. */
export const linksOf = (requests: DesiredState[]): Link[] =>
  requests.flatMap(({ items, plannedItems = [] }) =>
    [...items, ...plannedItems].filter((item): item is Link => item.kind === "link"),
  );

/** Adds the records that are lost as the pool has it, if there are rules in our chains, or peers of our devices, that none of these requests and no record lists. */
export async function findLostRecords(requests: CheckRequest[], facts: Facts): Promise<void> {
  const [first] = requests;
  if (!first || !(hasUnlistedRules(requests, facts) || hasUnlistedPeers(requests, facts))) return;
  const known = new Set(facts.records.map(({ uid }) => uid));
  facts.lostRecords = (await first.ownersHere()).filter(({ uid }) => !known.has(uid)).map(recordPath);
}

/** Records of this network whose lease is gone, and that are of the same resource or list an item that only one owner can have. */
export async function findStaleUids(desired: CheckRequest, facts: Facts): Promise<string[]> {
  const shared = new Set(desired.items.flatMap((item) => (item.kind === "link" && item.shared ? [item.name] : [])));
  const unique = desired.items.filter(
    (item) =>
      isUnique(item) &&
      !(item.kind === "link" && shared.has(item.name)) &&
      !(item.kind === "address" && shared.has(item.dev)),
  );
  const { uid, owner, network, store } = desired.record;
  const candidates = facts.records.filter(
    (record) =>
      record.uid !== uid &&
      record.network === network &&
      record.store === store &&
      (record.owner === owner || unique.some((item) => hasItem(record, item))),
  );
  const gone = await Promise.all(candidates.map((record) => desired.isLeaseGone(record.uid)));
  return candidates.filter((_, i) => gone[i]).map((record) => record.uid);
}

/** Warnings about files that are not valid records. Those of `desiredStates` are renamed, and their records written again. */
export function invalidWarnings(host: string, desiredStates: DesiredState[], facts: Facts): string[] {
  const own = new Set(desiredStates.map(({ record }) => recordPath(record)));
  return facts.invalidRecords.map(({ file, reason }) =>
    own.has(file)
      ? `${host}: ${file} is not a record (${reason}). It is kept as ${file}.invalid-TIME, and the record is written again.`
      : `${host}: ${file} is not a record (${reason}). \`pulumi up --refresh\` of its owner's stack writes it again. Until then chains, forwarding and units that it may share with others stay.`,
  );
}

/** Warnings about Docker networks that may remain: there is no record, and dockerd does not answer. `desiredStates`: before `adaptToHost`. */
export function dockerWarnings(host: string, desiredStates: DesiredState[], { docker, records }: Facts): string[] {
  if (!docker || docker.isRunning) return [];
  return desiredStates
    .filter(({ record, items }) => items.length === 0 && !records.some(({ uid }) => uid === record.uid))
    .flatMap(({ plannedItems = [] }) => plannedItems)
    .filter((item) => item.kind === "docker")
    .map(
      ({ name, bridge }) =>
        `${host}: dockerd does not answer and there is no record, so it is not known whether it has the network ${name}. If it has, it creates ${bridge} again when it starts: \`docker network rm ${name}\`.`,
    );
}

/** Refuses a removal without a record and without a plan: what the owner has on the host is unknown. */
export function refuseUnplanned({ record, items, plannedItems, planError }: ApplyRequest, facts: Facts): void {
  const isListed = facts.records.some(({ uid }) => uid === record.uid);
  if (items.length > 0 || plannedItems || !planError || isListed) return;
  throw new OverlayError(
    "RECORD_LOST",
    `${recordPath(record)} is missing, and what is to be removed there cannot be planned: ${planError.what}`,
    `Make that host answer and try again. If it is gone for good, look at what is left here (${INSPECT_COMMANDS.map((command) => `\`${command}\``).join(", ")}), remove what belongs to ${record.network}, take the resource out of the state with \`pulumi state delete\`, and release its values with \`overlayctl gc\`.`,
    planError,
  );
}

/** The invalid file in place of this owner's record. */
const invalidRecordFile = (desired: DesiredState, facts: Facts): string | undefined =>
  facts.invalidRecords.find(({ file }) => file === recordPath(desired.record))?.file;
