import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// An overlay between hosts on a network that others can read. Each host makes a key of its own, which never leaves it; the public keys
// are outputs.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("private", {
  tunnel: "wireguard",
  subnets: ["10.128.0.0/12/6/14", "fd00:128::/48/16/64"],
  hubConnection: { host: config.require("hub"), ...login },
});

export const hubPublicKey = network.hubPublicKey;
export const jobs = Object.entries(runners).map(([runnerName, host]) => {
  const runner = new overlay.RunnerSubnet(runnerName, { network, connection: { host, ...login } });
  const job = { runner, usedBy: `job-${runnerName}`, force: true };
  const { ip, cidr, gateway } = new overlay.IPReservation(`job-${runnerName}`, job);
  return { runnerName, ip, cidr, gateway, publicKey: runner.publicKey };
});
