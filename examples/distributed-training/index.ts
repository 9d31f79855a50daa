import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";

// A training job over several runners: every worker must know the master's address before the master is started.
const config = new pulumi.Config();
const runners = config.requireObject<Record<string, string>>("runners"); // name → address
const login = { user: "root", privateKey: config.requireSecret("privateKey") };

const network = new overlay.OverlayNetwork("training", { hubConnection: { host: config.require("hub"), ...login } });

// One worker on each runner; the first is the master. Preview shows all their addresses. An address in use is not deleted
// unless `force` is set.
const workers = Object.entries(runners).map(([name, host]) => {
  const runner = new overlay.RunnerSubnet(name, { network, connection: { host, ...login } });
  return new overlay.IPReservation(`worker-${name}`, { runner, usedBy: `train-${name}`, force: true });
});
const master = workers[0]!;

export const masterAddress = master.ip;
export const jobs = workers.map(({ runnerName, ip, cidr, gateway, dockerRunArgs }, rank) => ({
  runnerName,
  ip,
  cidr,
  gateway,
  command: pulumi.interpolate`docker run ${dockerRunArgs} -e RANK=${rank} -e WORLD_SIZE=${workers.length} -e MASTER_ADDR=${master.ip} -e MASTER_PORT=29500 train`,
}));
