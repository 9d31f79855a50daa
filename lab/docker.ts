import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Lab } from "./lab";
import { run } from "./process";

/** Docker on lab hosts: Debian's own dockerd, with containers of a busybox. */
export class LabDocker {
  constructor(private readonly lab: Lab) {}

  /** Where the machine has no dockerd, or its kernel none of what dockerd needs: why. Leaves dockerd running on `host`. */
  async whyNot(host: string): Promise<string | undefined> {
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
    // By its text: a host has a /tmp of its own, and this may lie in the machine's.
    const input = readFileSync(join(__dirname, "docker.sh"), "utf8");
    const { code, stderr } = await run(this.lab.hostCommand(host, ["sh", "-s", verb, parent]), { input });
    if (code !== 0) throw new Error(`dockerd on ${host} did not ${verb}: ${stderr.trim()}`);
  }
}
