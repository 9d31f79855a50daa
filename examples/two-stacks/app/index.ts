import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// Owned by an application team: no host, no key, only addresses on a network that another stack has.
const platform = new pulumi.StackReference(new pulumi.Config().require("platform"));
const runners = platform.requireOutput("runnerNames") as pulumi.Output<string[]>;

const web = new overlay.IPReservation("web", {
  runner: runners.apply((names) => names[0]!),
  usedBy: "web",
  force: true,
});
const database = new overlay.IPReservation("database", {
  runner: runners.apply((names) => names.at(-1)!),
  usedBy: "database",
  force: true,
});

export const services = [web, database].map(({ ip, cidr, gateway, runnerName }) => ({ ip, cidr, gateway, runnerName }));
