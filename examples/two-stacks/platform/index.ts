import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// Owned by the platform team. Other stacks find the network and its runners by name; this one only exports the names.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("platform", { hubConnection: { host: config.require("hub"), ...login } });
const subnets = Object.entries(runners).map(
  ([name, host]) => new overlay.RunnerSubnet(name, { network, connection: { host, ...login } }),
);

export const networkName = network.networkName;
export const runnerNames = subnets.map(({ runnerName }) => pulumi.interpolate`${network.networkName}/${runnerName}`);
