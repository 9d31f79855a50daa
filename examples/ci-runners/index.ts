import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// CI jobs need an address for a while, on whichever machine has room. One that is never used ends by itself; the job that
// starts redeems its token (`overlayctl ip use --token-file FILE`), and the address is then its own until it is released.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const jobs = config.requireObject<string[]>("jobs");
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("ci", { hubConnection: { host: config.require("hub"), ...login } });
const machines = Object.entries(runners).map(
  ([name, host]) => new overlay.RunnerSubnet(name, { network, connection: { host, ...login } }),
);

const addresses = jobs.map(
  (job) => new overlay.IPReservation(job, { network, placement: "spread", ttl: true }, { dependsOn: machines }),
);

export const leases = addresses.map(({ ip, cidr, gateway, runnerName, expiresAt, token }) => ({
  ip,
  cidr,
  gateway,
  runnerName,
  expiresAt,
  token,
}));
