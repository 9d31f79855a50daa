import { PassThrough } from "node:stream";
import { type ClientCallback, type ClientChannel, Client as Ssh } from "ssh2";
import { expect, test } from "vitest";
import { ChannelNotOpened, SshClient } from "../../../provider/host/ssh/client";

const context = { name: "h", user: "root", sudo: false, operationTimeout: 5, lost: () => undefined };

/** A host that refuses the first sessions for these reasons (RFC 4254, 5.1), and opens the next one. */
function hostThatRefuses(...reasons: number[]) {
  const ssh = new Ssh();
  let asked = 0;
  ssh.exec = ((_command: string, done: ClientCallback) => {
    const reason = reasons[asked++];
    if (reason === undefined)
      done(undefined, Object.assign(new PassThrough(), { stderr: new PassThrough() }) as unknown as ClientChannel);
    else done(Object.assign(new Error("(SSH) Channel open failure: open failed"), { reason }), undefined as never);
    return ssh;
  }) as Ssh["exec"];
  return { client: new SshClient(ssh, Buffer.alloc(0), 3600), asked: () => asked };
}

test("a session that the host's configuration forbids is asked for once", async () => {
  const { client, asked } = hostThatRefuses(1);
  await expect(client.withShell(context, 5000, async () => "opened")).rejects.toThrow(ChannelNotOpened);
  expect(asked()).toBe(1);
});

test.each([
  ["has too many sessions", 2],
  ["is short of resources", 4],
])("a session is asked for again if the host %s", async (_, reason) => {
  const { client, asked } = hostThatRefuses(reason, reason);
  expect(await client.withShell(context, 5000, async () => "opened")).toBe("opened");
  expect(asked()).toBe(3);
});
