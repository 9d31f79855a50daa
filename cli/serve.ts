import type { Observer } from "../provider/ipam/session";
import { command, withSettings } from "./command";
import { addDemo } from "./demo";

/** By package name: this works from sources and from dist/. */
const { version } = require("pulumi-overlay/package.json") as { version: string };

export const serveCommand = () =>
  command("serve", "Serve reservations over HTTP until SIGTERM. Logs are JSON lines on stdout. See docs/service.md.")
    .option("--listen <host:port>", "default 127.0.0.1:7447; other addresses than loopback need TLS")
    .option("--grpc-listen <host:port>", "serve gRPC, too, such as 127.0.0.1:7448; see docs/grpc.md")
    .option("--tls-cert <file>", "certificate with its chain (PEM); read again when it changes")
    .option("--tls-key <file>", "its key (PEM)")
    .option("--client-ca <file>", "accept only clients with a certificate of these authorities (PEM)")
    .option(
      "--demo",
      "fill an empty store with a network `training` and its runners node1 and node2, to try the service",
    )
    .option("--no-auth", "without access tokens; on loopback only")
    .option("--body-limit <bytes>", "default 65536")
    .option("--page-limit <entries>", "default 1000")
    .option("--rate-limit <requests>", "in a second for each access token; default 1000")
    .option("--request-timeout <seconds>", "in which a request must arrive; default 30")
    .option("--metrics-public", "metrics need no access token")
    .option("--metrics-pools <count>", "pools with metrics of their own; others are counted together; default 1000")
    .option("--log-level <level>", "debug, info, warn, error or silent; default info")
    .action(
      withSettings<{ auth: boolean; demo?: boolean }>(async (settings, _out, { auth, demo, ...options }) => {
        const [{ openIpam, refuseService }, { readServiceSettings, serve }] = await Promise.all([
          import("../provider/ipam/index.js"),
          import("../service/index.js"),
        ]);
        const service = readServiceSettings({ ...options, ...(!auth && { noAuth: true }) }, process.env);
        const { tokenKeys, tenantDefaults, actor } = settings;
        refuseService(settings.store);
        if (demo) await openIpam(settings.store, settings).then((pool) => addDemo(pool).finally(() => pool.end()));
        const open = (observer: Observer) => openIpam(settings.store, { ...settings, observer });
        await serve({ openIpam: open, tokenKeys, tenantDefaults, actor, version }, service);
      }),
    );
