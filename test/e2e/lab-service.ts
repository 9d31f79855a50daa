import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import type { Lab } from "../../lab/lab";
import { newAuthority } from "../contract/servers/certificates";

/** `overlayctl serve` with TLS, as a process in the lab's controller. */
export interface LabService {
  /** For `overlay:store`, with the authority of its certificate. */
  store: string;
  stop(): Promise<void>;
}

export async function startLabService(lab: Lab, store: string, options: string[] = []): Promise<LabService> {
  const authority = newAuthority();
  const { cert, key } = authority.issue("service", "IP:127.0.0.1");
  const program = join(__dirname, "../../dist/cli/overlayctl.js");
  const args = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, ...options];
  const child = lab.spawnInController(process.execPath, [program, ...args], {
    env: { ...process.env, OVERLAY_STORE: store },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const url = await readUrl(child);
  return { store: `${url}?ca=${authority.ca}`, stop: () => end(child) };
}

function readUrl(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    child.stdout!.on("data", (data) => {
      text += data;
      const found = /listening at (https[^"]+)/.exec(text)?.[1];
      if (found) resolve(found);
    });
    child.once("exit", () => reject(new Error(`overlayctl serve has ended:\n${text}`)));
  });
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  await ended;
}
