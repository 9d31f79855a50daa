import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { Server, type ServerChannel } from "ssh2";
import { makeFolder, makeKey } from "./sshd";

/** What a hostile host does with a script: it prints text, or handles the channel itself. */
export type Behaviour = (
  script: string,
  channel: ServerChannel,
  mark: string,
) => { stdout?: string; stderr?: string } | undefined;

export interface HostileSshd {
  port: number;
  hostKey: string;
  /** All scripts that it received. */
  scripts: string[];
  behave(behaviour: Behaviour): void;
  stop(): Promise<void>;
}

/** An SSH server that accepts every login, answers our protocol as `behave` decides, and runs nothing. */
export async function startHostileSshd(): Promise<HostileSshd> {
  const folder = makeFolder();
  const key = makeKey(folder, "host");
  const scripts: string[] = [];
  let behaviour: Behaviour = () => ({});
  const server = new Server({ hostKeys: [readFileSync(key)] }, (client) => {
    client.on("error", () => {});
    client.on("authentication", (context) => context.accept());
    client.on("request", (_accept, reject) => reject?.());
    client.on("session", (accept) => {
      accept().on("exec", (acceptExec, _reject, { command }) => serve(acceptExec(), command));
    });
  });
  function serve(channel: ServerChannel, command: string): void {
    const mark = /overlay-[0-9a-f]{32}/.exec(command)![0];
    channel.on("error", () => {});
    channel.write(`${mark} start\n${mark} ready\n`);
    channel.stderr.write(`${mark} ready\n`);
    let [input, isAnswered, isEnded] = ["", false, false];
    const close = (): void => {
      if (!isAnswered || !isEnded) return;
      channel.exit(0);
      channel.end();
    };
    channel.on("data", (data: Buffer) => {
      input += data;
      const end = `echo "${mark} $c" >&2\n`;
      for (let at = input.indexOf(end); at >= 0; at = input.indexOf(end)) {
        const script = input.slice(0, at);
        input = input.slice(at + end.length);
        scripts.push(script);
        const answer = behaviour(script, channel, mark);
        if (!answer) continue;
        channel.stderr.write(`${answer.stderr ?? ""}${mark} 0\n`);
        channel.write(`${answer.stdout ?? ""}${mark} ${answer.stderr === undefined ? 0 : 1}\n`, () => {
          isAnswered = true;
          close();
        });
      }
    });
    channel.on("end", () => {
      isEnded = true;
      close();
    });
  }
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", () => resolve()));
  return {
    port: (server.address() as AddressInfo).port,
    hostKey: readFileSync(`${key}.pub`, "utf8").trim(),
    scripts,
    behave: (next) => {
      behaviour = next;
      scripts.length = 0;
    },
    stop: async () => {
      server.close();
      execFileSync("rm", ["-rf", folder]);
    },
  };
}
