import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// An overlay that KohakuRiver has built, with its names: devices that match the inputs are adopted without changes, with the ids of
// their runners; nothing is created again. `overlayctl scan` writes a program like this one.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const ids = config.requireObject<Record<string, number>>("ids"); // name → runner id
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("standing", {
  hubConnection: { host: config.require("hub"), ...login },
  ...overlay.kohakuRiverNames,
  adopt: true,
  hostAccess: "all",
});

export const subnets = Object.entries(runners).map(
  ([name, host]) =>
    new overlay.RunnerSubnet(name, {
      network,
      connection: { host, ...login },
      runnerId: ids[name]!,
      runnerDevice: "vxlan0",
      adopt: true,
    }).subnet,
);
