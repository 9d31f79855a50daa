import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// CI jobs need an address for a while, on any runner with a free one. A reservation that is never used expires. A job that
// starts uses its token (`overlayctl ip use --token-file FILE`), and then has the address until it is released.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const jobs = config.requireObject<string[]>("jobs");
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("ci", { hubConnection: { host: config.require("hub"), ...login } });
const subnets = Object.entries(runners).map(
  ([name, host]) => new overlay.RunnerSubnet(name, { network, connection: { host, ...login } }),
);

const addresses = jobs.map(
  (job) => new overlay.IPReservation(job, { network, placement: "spread", ttl: true }, { dependsOn: subnets }),
);

export const leases = addresses.map(({ ip, cidr, gateway, runnerName, expiresAt, token }) => ({
  ip,
  cidr,
  gateway,
  runnerName,
  expiresAt,
  token,
}));
