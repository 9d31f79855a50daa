import { spawn } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { type RequestOptions, request } from "node:https";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { PeerCertificate, TLSSocket } from "node:tls";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { Ctl, deploy, OVERLAYCTL } from "../unit/cli/ctl";
import { type Authority, newAuthority } from "./servers/certificates";
import { type ServiceProcess, startService, waitFor } from "./service-process";

/** The real process with TLS, mutual TLS and sockets of systemd. */
const ctl = new Ctl();
const folder = mkdtempSync(join(tmpdir(), "overlay-tls-"));
const file = (name: string): string => join(folder, name);
let authority: Authority;
let other: Authority;
let service: ServiceProcess | undefined;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1"]));
  [authority, other] = [newAuthority(), newAuthority()];
});
afterEach(async () => {
  await service?.stop();
  service = undefined;
});
afterAll(() => {
  ctl.remove();
  for (const each of [folder, authority.folder, other.folder]) rmSync(each, { recursive: true, force: true });
});

const NAMES = "IP:127.0.0.1,DNS:localhost";
/** Puts a new certificate and its key where the service reads them. */
function install(name: string, from: Authority = authority): void {
  const { cert, key } = from.issue(name, NAMES);
  copyFileSync(cert, file("cert.pem"));
  copyFileSync(key, file("key.pem"));
}
const tls = (): string[] => ["--tls-cert", file("cert.pem"), "--tls-key", file("key.pem")];

interface Answer {
  status: number;
  /** The name in the server's certificate. */
  name: string;
}

function get(path: string, options: RequestOptions = {}): Promise<Answer> {
  const url = new URL(path, service!.url);
  return new Promise((resolve, reject) => {
    const outgoing = request(url, { ca: readFileSync(authority.ca), agent: false, ...options }, (answer) => {
      const { subject } = (answer.socket as TLSSocket).getPeerCertificate() as PeerCertificate;
      answer.resume();
      resolve({ status: answer.statusCode!, name: String(subject.CN) });
    });
    outgoing.once("error", reject);
    outgoing.end();
  });
}

describe.sequential("TLS", { timeout: 120_000 }, () => {
  test("other addresses than loopback are served; a client that does not trust the authority is not", async () => {
    install("first");
    service = await startService(ctl, [...tls(), "--listen", "0.0.0.0:0"]);
    service.url = service.url.replace(/\/\/[\d.]+:/, "//127.0.0.1:");
    expect(await get("/healthz")).toEqual({ status: 200, name: "first" });
    expect(await get("/api/overlay/ip/reservations")).toMatchObject({ status: 401 });
    await expect(get("/healthz", { ca: readFileSync(other.ca) })).rejects.toThrow();
    await expect(fetch(`${service.url.replace("https", "http")}/healthz`)).rejects.toThrow();
  });

  test("without authentication only loopback is served, also with TLS", async () => {
    install("first");
    const { code, stderr } = await ctl.run("serve", ...tls(), "--listen", "0.0.0.0:0", "--no-auth");
    expect([code, stderr]).toEqual([1, expect.stringContaining("Without authentication")]);
  });

  test("new files are used without a restart; files that do not fit each other are not", async () => {
    install("first");
    service = await startService(ctl, tls());
    expect(await get("/healthz")).toMatchObject({ name: "first" });
    install("second");
    await waitFor(async () => ((await get("/healthz")).name === "second" ? true : undefined));
    writeFileSync(file("key.pem"), "half a fi");
    await waitFor(() => (service!.log().includes("old TLS files stay in use") ? true : undefined));
    expect(await get("/healthz")).toEqual({ status: 200, name: "second" });
    install("third");
    await waitFor(async () => ((await get("/healthz")).name === "third" ? true : undefined));
  });

  test("files behind a link that is replaced, as Kubernetes does it, are seen", async () => {
    for (const name of ["fourth", "fifth"]) {
      const { cert, key } = authority.issue(name, NAMES);
      copyFileSync(cert, file(`${name}-cert`));
      copyFileSync(key, file(`${name}-key`));
    }
    const link = (name: string): void => {
      for (const part of ["cert", "key"]) {
        rmSync(file(`${part}.pem`), { force: true });
        symlinkSync(file(`${name}-${part}`), file(`${part}.pem`));
      }
    };
    link("fourth");
    service = await startService(ctl, tls());
    expect(await get("/healthz")).toMatchObject({ name: "fourth" });
    link("fifth");
    await waitFor(async () => ((await get("/healthz")).name === "fifth" ? true : undefined));
    for (const part of ["cert", "key"]) unlinkSync(file(`${part}.pem`));
  });

  test("a certificate and the key of another one are refused at the start", async () => {
    install("first");
    copyFileSync(authority.issue("second", NAMES).key, file("key.pem"));
    const { code, stderr } = await ctl.run("serve", ...tls(), "--listen", "127.0.0.1:0");
    expect([code, stderr]).toEqual([1, expect.stringContaining("cannot be used")]);
  });
});

describe.sequential("mutual TLS", { timeout: 120_000 }, () => {
  const identity = (from: Authority) => {
    const { cert, key } = from.issue("client", "DNS:client");
    return { cert: readFileSync(cert), key: readFileSync(key) };
  };

  test("only clients with a certificate of the authority are served, and they need an access token, too", async () => {
    install("first");
    copyFileSync(authority.ca, file("client-ca.pem"));
    service = await startService(ctl, [...tls(), "--client-ca", file("client-ca.pem")]);
    expect(await get("/healthz", identity(authority))).toEqual({ status: 200, name: "first" });
    expect(await get("/api/overlay/ip/reservations", identity(authority))).toMatchObject({ status: 401 });
    await expect(get("/healthz")).rejects.toThrow();
    await expect(get("/healthz", identity(other))).rejects.toThrow();
  });

  test("a new authority is used without a restart", async () => {
    install("first");
    copyFileSync(authority.ca, file("client-ca.pem"));
    service = await startService(ctl, [...tls(), "--client-ca", file("client-ca.pem")]);
    const [known, unknown] = [identity(authority), identity(other)];
    await expect(get("/healthz", unknown)).rejects.toThrow();
    copyFileSync(other.ca, file("client-ca.pem"));
    await waitFor(() =>
      get("/healthz", unknown).then(
        () => true as const,
        () => undefined,
      ),
    );
    await expect(get("/healthz", known)).rejects.toThrow();
  });
});

describe.sequential("a socket of systemd", { timeout: 120_000 }, () => {
  /** Starts the service with a listening socket as its file 3. */
  async function startWithSocket(host: string, args: string[] = []) {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, host, resolve));
    const { fd } = (server as unknown as { _handle: { fd: number } })._handle;
    const { port } = server.address() as { port: number };
    const script = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"';
    const command = ["-c", script, "sh", process.execPath, OVERLAYCTL, "serve", "--no-auth", ...args];
    const env = { PATH: process.env.PATH, HOME: ctl.folder, OVERLAY_STORE: ctl.store };
    const child = spawn("/bin/sh", command, { env, stdio: ["ignore", "pipe", "pipe", fd] });
    let output = "";
    for (const stream of [child.stdout!, child.stderr!]) stream.on("data", (data) => (output += data));
    const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
    server.close(); // only this process's copy
    return { url: `http://127.0.0.1:${port}`, child, ended, output: () => output };
  }

  test("is served, also the client for which the service was started", async () => {
    const { url, child, ended } = await startWithSocket("127.0.0.1");
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
    child.kill("SIGTERM");
    expect(await ended).toBe(0);
  });

  test("is refused without TLS, unless it is on loopback; a client that waits is not served", async () => {
    const { url, ended, output } = await startWithSocket("0.0.0.0");
    await expect(fetch(`${url}/healthz`)).rejects.toThrow();
    expect(await ended).toBe(1);
    expect(output()).toContain("SETTING_INVALID: Without TLS");
    expect(output()).not.toContain("/healthz");
  });
});
