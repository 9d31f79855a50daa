import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// Two tenants on one network. Each has its own block of the public range, with a quota, and one address of it in front of
// its service.
const config = new pulumi.Config();
const login = { user: "root", privateKey: config.requireSecret("privateKey") };
const [[name, host]] = Object.entries(config.requireObject<Record<string, string>>("runners")) as [[string, string]];

const network = new overlay.OverlayNetwork("shared", { hubConnection: { host: config.require("hub"), ...login } });
const runner = new overlay.RunnerSubnet(name, { network, connection: { host, ...login } });
const range = new overlay.IPPool("public", { ranges: ["198.51.100.0/24"], type: "loadBalancer" });

const tenants = ["red", "blue"].map((org) => {
  const tenant = { org, project: "shop" };
  const block = new overlay.IPPool(`public-${org}`, {
    parent: range,
    prefixLength: 28,
    type: "loadBalancer",
    tenant,
    quota: { maxIps: 1 },
  });
  const service = new overlay.IPReservation(`web-${org}`, { runner, usedBy: `web-${org}`, force: true });
  const front = new overlay.StaticIP(`front-${org}`, {
    pool: block,
    tenant,
    attach: network,
    forwards: [{ protocol: "tcp", port: 80, to: service.ip, toPort: 8080 }],
  });
  return {
    org,
    block: block.ranges,
    service: service.ip,
    cidr: service.cidr,
    gateway: service.gateway,
    front: front.ip,
  };
});

export { tenants };
