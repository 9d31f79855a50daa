import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// Where the hosts are, and how to log in. `npm start` fills this in for a lab on this machine.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("training", {
  subnets: "10.128.0.0/12/6/14",
  hubConnection: { host: config.require("hub"), ...login },
});

const subnets = Object.entries(runners).map(
  ([name, host]) => new overlay.RunnerSubnet(name, { network, connection: { host, ...login } }),
);

export const range = network.cidr;
export const hub = network.hubIp;
export const runnerSubnets = subnets.map(({ runnerName, subnet, gateway, firstIp }) => ({
  runnerName,
  subnet,
  gateway,
  firstIp,
}));
