import { remote } from "@pulumi/command";
import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// New hosts of a cloud provider: @pulumi/command installs what they lack, then they join the overlay. One connection
// object serves both packages.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const prepared = (name: string, connection: { host: string }): remote.Command =>
  new remote.Command(`prepare-${name}`, {
    connection: { ...connection, ...login },
    create: "apt-get update -q && apt-get install -qy iproute2 iptables iputils-ping",
  });

const hub = { host: config.require("hub") };
const network = new overlay.OverlayNetwork(
  "training",
  { hubConnection: { ...hub, ...login } },
  { dependsOn: prepared("hub", hub) },
);

export const subnets = Object.entries(runners).map(
  ([name, host]) =>
    new overlay.RunnerSubnet(name, { network, connection: { host, ...login } }, { dependsOn: prepared(name, { host }) })
      .subnet,
);
