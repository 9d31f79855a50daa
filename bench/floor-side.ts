import { openHosts } from "../provider/host/ssh/hosts";

/** One SSH handshake and two round trips for each host, all at once, in the lab's controller; prints milliseconds. */
interface Options {
  hosts: string[];
  key: string;
  knownHosts: string;
}

async function main({ hosts: addresses, key, knownHosts }: Options): Promise<void> {
  const settings = { connectTimeout: 60, operationTimeout: 120, parallelHosts: 16, knownHosts: [knownHosts] };
  const started = performance.now();
  const hosts = openHosts(settings);
  const visit = async (host: string): Promise<void> => {
    const open = await hosts.connect({ host, user: "root", privateKeyPath: key });
    await open.withLock("floor", async (shell) => {
      await shell.run("true");
      await shell.run("true");
    });
  };
  await Promise.all(addresses.map(visit));
  console.log(Math.round(performance.now() - started));
  await hosts.end();
}

void main(JSON.parse(process.argv[2]!) as Options);
