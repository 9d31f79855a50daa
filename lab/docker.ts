import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Lab } from "./lab";
import { run } from "./process";

/** Docker on lab hosts: Debian's dockerd, with containers of an image `busybox`. */
export class LabDocker {
  constructor(private readonly lab: Lab) {}

  /** Why dockerd cannot run here; undefined: it can, and runs on `host` now. */
  async findObstacle(host: string): Promise<string | undefined> {
    for (const tool of ["dockerd", "docker", "busybox"])
      if ((await this.lab.exec(host, `command -v ${tool}`)).code !== 0) return `there is no ${tool}`;
    return this.start(host).then(
      () => undefined,
      (error: Error) => error.message,
    );
  }

  start = (host: string): Promise<void> => this.#manage("start", host);

  /** Its containers stop, too; those with a restart policy come back when it starts. */
  stop = (host: string): Promise<void> => this.#manage("stop", host);

  async restart(host: string): Promise<void> {
    await this.stop(host);
    await this.start(host);
  }

  async #manage(verb: "start" | "stop", host: string): Promise<void> {
    const parent = `/overlay-lab-${this.lab.name}-${host}`;
    // Passed as text: the host has its own /tmp, and the script may be in this machine's.
    const input = readFileSync(join(__dirname, "docker.sh"), "utf8");
    const { code, stderr } = await run(this.lab.hostCommand(host, ["sh", "-s", verb, parent]), { input });
    if (code !== 0) throw new Error(`dockerd on ${host} did not ${verb}: ${stderr.trim()}`);
  }
}
