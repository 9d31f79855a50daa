import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Lab } from "../../lab/lab";
import { type Answer, OVERLAYCTL, objects } from "../unit/cli/ctl";

/** The real command line in the lab's controller, from where SSH reaches the hosts. */
export class LabCtl {
  readonly folder = mkdtempSync(join(tmpdir(), "overlay-labctl-"));
  readonly store = `sqlite:${join(this.folder, "pool.db")}`;

  constructor(readonly lab: Lab) {}

  async run(args: string[], input = ""): Promise<Answer> {
    const env = {
      PATH: process.env.PATH,
      HOME: this.folder,
      OVERLAY_STORE: this.store,
      OVERLAY_KNOWN_HOSTS: this.lab.knownHosts,
      OVERLAY_PRIVATE_KEY_PATH: this.lab.privateKeyPath,
      OVERLAY_CONNECT_TIMEOUT: "5",
    };
    const { code, stdout, stderr } = await this.lab.controller(process.execPath, [OVERLAYCTL, ...args], {
      env,
      input,
      cwd: this.folder,
    });
    return { code, stdout, stderr, json: objects(stdout) };
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}
