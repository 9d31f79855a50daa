import { copyFileSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ChannelCredentials, Client, credentials } from "@grpc/grpc-js";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { Ctl, deploy } from "../unit/cli/ctl";
import { Connection } from "./grpc-service";
import { type Authority, newAuthority } from "./servers/certificates";
import { type ServiceProcess, startService, waitFor } from "./service-process";

/** `overlayctl serve --grpc-listen` as a process, on a SQLite file. */
const ctl = new Ctl();
const folder = mkdtempSync(join(tmpdir(), "overlay-grpc-"));
let authority: Authority;
let token: string;
let service: ServiceProcess | undefined;
const clients: Client[] = [];

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1"]));
  const [made] = await ctl.must("access", "create", "scheduler", "--scope", "admin");
  token = String(made!.token);
  authority = newAuthority();
});
afterEach(async () => {
  for (const client of clients.splice(0)) client.close();
  await service?.stop();
  service = undefined;
});
afterAll(() => {
  ctl.remove();
  for (const each of [folder, authority.folder]) rmSync(each, { recursive: true, force: true });
});

async function start(...args: string[]): Promise<ServiceProcess> {
  service = await startService(ctl, ["--grpc-listen", "127.0.0.1:0", ...args]);
  await waitFor(() => grpcAddress());
  return service;
}
const grpcAddress = (): string | undefined => /gRPC listening at ([^"]+)"/.exec(service!.log())?.[1];

function connect(channel: ChannelCredentials = credentials.createInsecure()): Connection {
  const client = new Client(grpcAddress()!, channel);
  clients.push(client);
  return new Connection(client);
}

describe.sequential("overlayctl serve --grpc-listen", { timeout: 120_000 }, () => {
  test("the command line sees pools and addresses of services, and the history names the access token", async () => {
    await start();
    const client = connect();
    const pool = { name: "lb", ranges: ["192.168.50.0/28"], type: "POOL_TYPE_LOAD_BALANCER" };
    await client.call("Ipam.CreatePool", pool, token);
    const { lease } = await client.call("Ipam.AllocateIP", { serviceUid: "uid-1", pool: "lb" }, token);
    expect(await ctl.must("pool", "list")).toMatchObject(
      expect.arrayContaining([expect.objectContaining({ pool: "pool/lb", type: "loadBalancer", allocated: 1 })]),
    );
    expect(await ctl.must("ip", "list", "--pool", "lb")).toMatchObject([{ ip: lease.ip, owner: "service/uid-1" }]);
    const history = await ctl.must("history", "pool/lb");
    expect(history).toMatchObject([{ what: "claimed", value: lease.ip, by: "scheduler" }]);
    expect(service!.log()).toContain('"method":"/overlay.ipam.v1.Ipam/AllocateIP","status":"OK"');
    expect(service!.log()).not.toContain(token);
  });

  test("SIGTERM ends streams with a reason, and the process with 0", async () => {
    await start();
    const watcher = connect().watch({}, token);
    await watcher.next();
    const ended = service!.stop();
    await expect(watcher.event()).rejects.toMatchObject({ outcome: "UNAVAILABLE SERVICE_STOPPING" });
    expect(await ended).toMatchObject({ code: 0 });
  });

  test("has the TLS files of HTTP, and reads them again", async () => {
    const install = (name: string) => {
      const { cert, key } = authority.issue(name, "IP:127.0.0.1,DNS:localhost");
      copyFileSync(cert, join(folder, "cert.pem"));
      copyFileSync(key, join(folder, "key.pem"));
    };
    install("first");
    await start("--tls-cert", join(folder, "cert.pem"), "--tls-key", join(folder, "key.pem"));
    let name = "";
    const options = {
      checkServerIdentity: (_host: string, { subject }: { subject: { CN: unknown } }) => {
        name = String(subject.CN);
        return undefined;
      },
    };
    const secure = () => credentials.createSsl(readFileSync(authority.ca), undefined, undefined, options);
    expect(await connect(secure()).outcome("Ipam.ListPools", {}, token)).toBe("OK");
    expect(name).toBe("first");
    install("second");
    await waitFor(async () => {
      const outcome = await connect(secure()).outcome("Ipam.ListPools", {}, token);
      return outcome === "OK" && name === "second" ? true : undefined;
    });
  });

  test("other addresses than loopback need TLS, and an address that is taken is an error", async () => {
    const open = await ctl.run("serve", "--listen", "127.0.0.1:0", "--grpc-listen", "0.0.0.0:0");
    expect([open.code, open.stderr]).toEqual([1, expect.stringContaining("Without TLS")]);
    await start();
    const taken = await ctl.run("serve", "--listen", "127.0.0.1:0", "--grpc-listen", grpcAddress()!);
    expect([taken.code, taken.stderr]).toEqual([1, expect.stringContaining("cannot listen on")]);
    const wrong = await ctl.run("serve", "--grpc-listen", "nonsense");
    expect([wrong.code, wrong.stderr]).toEqual([1, expect.stringContaining("--grpc-listen")]);
  });
});
