import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// Runners that send to each other directly, encrypted. The hub carries what has no direct route: packets between runners until data has
// passed between the two, to the hub itself, and to and from static addresses.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("mesh", {
  tunnel: "wireguard",
  topology: "mesh",
  subnets: "10.128.0.0/12/6/14",
  hubConnection: { host: config.require("hub"), ...login },
});

export const jobs = Object.entries(runners).map(([runnerName, host]) => {
  const runner = new overlay.RunnerSubnet(runnerName, { network, connection: { host, ...login } });
  const job = { runner, usedBy: `job-${runnerName}`, force: true };
  const { ip, cidr, gateway } = new overlay.IPReservation(`job-${runnerName}`, job);
  return { runnerName, ip, cidr, gateway };
});
