import { expect, test } from "vitest";
import { deviceMac, dnsLabel, parseLayout, parseTunnelName, tunnelName } from "../../../provider/addressing/layout";
import sharingKeys from "../../vectors/akash_sharing_key.json";
import vectors from "../../vectors/device_names.json";

test.each(vectors.encode)("runner $runnerId is $device", ({ runnerId, device }) => {
  expect(tunnelName("vxkr", runnerId)).toBe(device);
  expect(parseTunnelName("vxkr", device, 65535)).toBe(runnerId);
});

test.each(vectors.decode)("'$device' on $subnet is the name of runner $runnerId only in its canonical form", (v) => {
  const id = parseTunnelName("vxkr", v.device, parseLayout(v.subnet).maxRunners);
  const canonical = v.runnerId !== null && tunnelName("vxkr", v.runnerId) === v.device;
  expect(id).toBe(canonical ? v.runnerId : undefined);
});

test("MACs are fixed, local, unicast, and differ by network, runner and role", () => {
  expect(deviceMac("training", 1, "hub")).toBe(deviceMac("training", 1, "hub"));
  const all = [
    deviceMac("training", 1, "hub"),
    deviceMac("training", 2, "hub"),
    deviceMac("training", 1, "bridge"),
    deviceMac("b", 1, "hub"),
  ];
  expect(new Set(all).size).toBe(4);
  for (const mac of all) expect(mac).toMatch(/^02(:[0-9a-f]{2}){5}$/);
});

/** Akash accepts words that are not DNS labels. They are hashed here, too. */
const keys = sharingKeys.cases.filter(({ owner }) => owner === "tenant-a");
const isLabel = (word: string): boolean => /^(?!-)[a-z0-9-]{1,63}(?<!-)$/.test(word);

test.each(keys.filter(({ endpoint, hashed }) => hashed || isLabel(endpoint)))(
  "'$endpoint' is part of a name as $sharingKey",
  ({ endpoint, sharingKey, resourceNameTcp80 }) => {
    expect(`tenant-a-ip-${dnsLabel(endpoint)}`).toBe(sharingKey);
    expect(`tenant-a-ip-${dnsLabel(endpoint)}-tcp-80`).toBe(resourceNameTcp80);
  },
);

test.each(keys.filter(({ endpoint, hashed }) => !hashed && !isLabel(endpoint)))(
  "'$endpoint' is no DNS label, and is hashed",
  ({ endpoint }) => {
    expect(dnsLabel(endpoint)).toMatch(/^[0-9a-v]{24}$/);
  },
);
