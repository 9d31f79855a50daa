import { randomBytes } from "node:crypto";
import type { HostRecord } from "../../network/model/items";
import type { DiscoveredRunner } from "../../network/read/survey";
import { networkSettings } from "../../resources/network-settings";
import type { Exported } from "../exports";
import { placeText, type Read, type Surveyed, type SurveyedRunner, surveyOf } from "./surveyed";

/**
 * What our records on machines say about leases: the hub has one for its network and one for each runner, with uid and
 * owner; values and settings are told by the devices. Lease ids are not on machines: they are made anew, which a stack
 * that is still there takes for a renewed lease and claims again, under the same uid and with the same values.
 */
export interface Recorded {
  resources: Exported[];
  /** The store that wrote them. */
  stores: Set<string>;
  /** Records of things that cannot be told from machines. */
  unclear: string[];
}

export function recordedOn(reads: Read[]): Recorded {
  const networks = surveyOf(reads).filter(({ network }) => network.networkName !== undefined);
  const resources = networks.flatMap((each) => [...networkOf(each), ...each.runners.flatMap((r) => runnerOf(r, each))]);
  const all = reads.flatMap((read) => read.facts.records.map((record) => ({ read, record })));
  const known = new Set(resources.map(({ props }) => props.uid));
  return {
    resources,
    stores: new Set(all.map(({ record }) => record.store)),
    unclear: [
      ...new Set(
        all
          .filter(({ record }) => !known.has(record.uid))
          .map(({ record, read }) => `${record.owner} on ${placeText(read)}`),
      ),
      ...reads.flatMap((read) =>
        read.facts.invalidRecords.map(({ file, reason }) => `${file} on ${placeText(read)}: not a record (${reason})`),
      ),
    ],
  };
}

const withLink = (records: HostRecord[], name: string): HostRecord | undefined =>
  records.find(({ items }) => items.some((item) => item.kind === "link" && item.name === name));

/** As the lifecycle makes them; a lease id begins with its uid. */
const identity = ({ uid, owner }: HostRecord) => ({ uid, owner, leaseId: `${uid}.${randomBytes(8).toString("hex")}` });

function networkOf(surveyed: Surveyed): Exported[] {
  const { network, hub } = surveyed;
  const record = withLink(hub.facts.records, network.hubInterface);
  if (!record) return [];
  const { host, port } = hub.connection;
  const props = {
    ...settingsOf(surveyed),
    ...identity(record),
    hubInterface: network.hubInterface,
    hubConnection: { host, port },
  };
  return [{ source: placeText(hub), type: "OverlayNetwork", props }];
}

/** What no machine tells (verify, what happens on exhaustion) is as by default; the next up of the network sets it right. */
function settingsOf({ network, hub, runners }: Surveyed) {
  const first = runners.find(({ at }) => at)?.at?.seen;
  const { networkName, subnets, devicePrefix, vniBase, vxlanPort, hubUnderlayIp } = network;
  return networkSettings.parse({
    networkName,
    subnets: subnets.length === 1 ? subnets[0] : subnets,
    devicePrefix,
    vniBase,
    vxlanPort,
    ...(hubUnderlayIp !== hub.connection.host && { hubUnderlayIp }),
    ...(first && fromRunner(first)),
  });
}

const fromRunner = ({ bridgeName, masquerade, isAutoMtu, mtu }: DiscoveredRunner) => ({
  bridgeName,
  masquerade,
  mtu: isAutoMtu ? ("auto" as const) : mtu,
});

function runnerOf(runner: SurveyedRunner, surveyed: Surveyed): Exported[] {
  const record = withLink(surveyed.hub.facts.records, runner.device);
  if (!record) return [];
  const { host, port } = surveyed.hub.connection;
  const at = runner.at?.host.connection;
  const props = {
    ...identity(record),
    network: settingsOf(surveyed),
    runnerName: record.name ?? runner.name,
    runnerId: runner.runnerId,
    hubConnection: { host, port },
    ...(at && { connection: { host: at.host, port: at.port } }),
  };
  return [{ source: placeText(surveyed.hub), type: "RunnerSubnet", props }];
}
