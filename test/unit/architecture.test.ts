import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { expect, test } from "vitest";

/**
 * Which folder may import which. Pure folders (addressing, network) import nothing that does I/O. In a folder's own list a folder
 * stands for all of its files; every folder of the provider has a rule.
 */
const ROOT = join(__dirname, "../..");
const NETWORK = "provider/network";
/** What engines may import. */
const CLIENTS = [
  "@grpc/grpc-js",
  "@grpc/proto-loader",
  "pg",
  "zod",
  ...["crypto", "fs", "fs/promises", "http", "https", "net", "os", "path", "timers/promises", "tls", "util"].map(
    (name) => `node:${name}`,
  ),
];
const GRPC = ["@grpc/grpc-js", "@grpc/proto-loader", "@grpc/reflection", "grpc-health-check"];
const RULES: [folder: string, may: string[]][] = [
  ["provider/addressing", ["provider/errors", "ip-address", "node:crypto"]],
  [`${NETWORK}/model`, ["provider/errors", "provider/json", "provider/addressing", "zod"]],
  [
    `${NETWORK}/kinds`,
    ["provider/errors", "provider/addressing", `${NETWORK}/model`, `${NETWORK}/render/shell`, "node:crypto", "zod"],
  ],
  [`${NETWORK}/render`, ["provider/errors", "provider/addressing", `${NETWORK}/model`, `${NETWORK}/kinds`]],
  [
    `${NETWORK}/read`,
    [
      "provider/errors",
      "provider/addressing",
      `${NETWORK}/model`,
      `${NETWORK}/kinds`,
      `${NETWORK}/render/shell`,
      "zod",
    ],
  ],
  [`${NETWORK}/diff`, ["provider/errors", "provider/addressing", `${NETWORK}/model`, `${NETWORK}/kinds`, "node:util"]],
  [
    `${NETWORK}/plan`,
    ["provider/addressing", `${NETWORK}/model`, `${NETWORK}/kinds`, `${NETWORK}/render/shell`, `${NETWORK}/diff`],
  ],
  [
    `${NETWORK}/preflight`,
    [
      "provider/errors",
      "provider/owner",
      "provider/addressing",
      ...["model", "kinds", "render/shell", "diff"].map((room) => `${NETWORK}/${room}`),
    ],
  ],
  [
    "provider/host/ssh",
    [
      "provider/errors",
      "provider/host/connection",
      `${NETWORK}/render/shell`,
      "node-ssh",
      "ssh2",
      ...["crypto", "events", "fs/promises", "net", "os", "stream", "timers/promises"].map((name) => `node:${name}`),
    ],
  ],
  [
    "provider/host",
    [
      "provider/errors",
      "provider/addressing",
      NETWORK,
      "node-ssh",
      "ssh2",
      "zod",
      ...["crypto", "events", "fs/promises", "net", "os", "stream", "timers/promises", "util"].map((n) => `node:${n}`),
    ],
  ],
  [
    "provider/pool/storage",
    [
      "provider/errors",
      "provider/json",
      "provider/pool-names",
      "provider/pool/access",
      "provider/pool/types",
      "provider/pool/extents",
      "provider/pool/errors",
      "node:crypto",
    ],
  ],
  [
    "provider/pool/rules",
    [
      "provider/errors",
      "provider/lease-names",
      "provider/owner",
      "provider/pool-names",
      "provider/addressing",
      "provider/pool/types",
      "provider/pool/extents",
      "provider/pool/errors",
      "provider/pool/storage",
      "node:util",
    ],
  ],
  ["provider/pool/engines", ["provider/errors", "provider/pool/storage", ...CLIENTS]],
  [
    "provider/pool",
    [
      "provider/errors",
      "provider/format-time",
      "provider/json",
      "provider/lease-names",
      "provider/owner",
      "provider/pool-names",
      "provider/addressing",
      ...CLIENTS,
    ],
  ],
  [
    "provider/resources",
    [
      "provider/errors",
      "provider/format-time",
      "provider/addressing",
      `${NETWORK}/model`,
      `${NETWORK}/plan`,
      "provider/resource",
      "provider/lease-names",
      "provider/pool-names",
      "provider/owner",
      "provider/host/connection",
      "provider/pool/types",
      "zod",
    ],
  ],
  [
    "provider/lifecycle",
    [
      "provider/errors",
      "provider/format-time",
      "provider/invalid-input",
      "provider/owner",
      "provider/addressing",
      NETWORK,
      "provider/resource",
      "provider/pool-names",
      "provider/pool/types",
      "provider/host/connection",
      "node:crypto",
      "zod",
    ],
  ],
  [
    "provider/reservations",
    [
      "provider/errors",
      "provider/format-time",
      "provider/owner",
      "provider/addressing",
      "provider/resource",
      "provider/lease-names",
      "provider/pool-names",
      "provider/resources",
      "provider/pool/types",
      "provider/pool/token",
      "provider/pool/errors",
      "provider/pool/extents",
      "node:crypto",
      "node:timers/promises",
      "node:util",
      "zod",
    ],
  ],
  [
    "provider/access",
    [
      "provider/errors",
      "provider/format-time",
      "provider/owner",
      "provider/lease-names",
      "provider/pool-names",
      "provider/pool/access",
      "provider/pool/extents",
      "provider/pool/operations",
      "provider/pool/run",
      "provider/pool/types",
      "provider/resource",
      "provider/resources/inputs",
      "provider/resources/tenants",
      "node:crypto",
      "node:util",
      "zod",
    ],
  ],
  [
    "provider/webhooks",
    [
      "provider/errors",
      "provider/format-time",
      "provider/loopback",
      "provider/access",
      "provider/pool/types",
      "node:crypto",
      "zod",
    ],
  ],
  [
    "provider/service",
    [
      "provider/errors",
      "provider/invalid-input",
      "provider/json",
      "provider/loopback",
      "provider/pool-names",
      "provider/settings",
      "provider/access",
      "provider/webhooks",
      "provider/pool/observer",
      "provider/pool/remote",
      "provider/pool/run",
      "provider/pool/types",
      "provider/reservations",
      "@fastify/swagger",
      "@fastify/swagger-ui",
      "fastify",
      "fastify-type-provider-zod",
      "openapi-types",
      "pino",
      "prom-client",
      "zod",
      ...GRPC,
      ...[
        "child_process",
        "crypto",
        "events",
        "fs",
        "http",
        "https",
        "net",
        "path",
        "stream",
        "timers/promises",
        "tls",
        "util",
      ].map((name) => `node:${name}`),
    ],
  ],
  [
    "provider/service/grpc",
    [
      "provider/errors",
      "provider/access",
      "provider/pool/types",
      "provider/reservations",
      ...["admission", "app", "events", "problem", "readiness", "requests", "trace"].map(
        (n) => `provider/service/${n}`,
      ),
      "pino",
      "zod",
      ...GRPC,
      ...["events", "net", "path", "tls", "util"].map((name) => `node:${name}`),
    ],
  ],
  [
    "provider/client",
    [
      "provider/errors",
      "provider/json",
      "provider/service/schemas",
      "provider/service/inputs",
      "provider/service/problem",
      "zod",
    ],
  ],
  [
    "provider/cli",
    [
      "provider/access",
      "provider/webhooks",
      "provider/errors",
      "provider/json",
      "provider/owner",
      "provider/resource",
      "provider/secret-file",
      "provider/settings",
      "provider/pool-names",
      "provider/addressing",
      "provider/host",
      "provider/lifecycle",
      NETWORK,
      "provider/pool",
      "provider/reservations",
      "provider/resources",
      "sdk/kohakuriver",
      "commander",
      "zod",
      ...["child_process", "crypto", "fs/promises", "os", "stream/consumers", "util"].map((name) => `node:${name}`),
    ],
  ],
  ["sdk", ["@pulumi/pulumi", "node:crypto", "provider/nearest-name"]],
];
/** The lifecycle may name types of the hosts: they cost nothing at run time. */
const importsOf = (file: string, isAll = false): string[] =>
  [...readFileSync(file, "utf8").matchAll(/^(?:import|export) (type )?[^;]*? from "([^"]+)";$/gm)]
    .filter(([text, type]) => isAll || !type || !file.includes("lifecycle") || !text.includes("host/"))
    .map(([, , target]) => (target!.startsWith(".") ? relative(ROOT, join(file, "..", target!)) : target!));

const filesIn = (folder: string): string[] =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => join(ROOT, folder, name));

test.each(RULES)("%s imports only what it may", (folder, may) => {
  const wrong = filesIn(folder).flatMap((file) =>
    importsOf(file)
      .filter((target) => ![folder, ...may].some((allowed) => target === allowed || target.startsWith(`${allowed}/`)))
      .map((target) => `${relative(ROOT, file)} imports ${target}`),
  );
  expect(wrong).toEqual([]);
});

test("every folder of the provider has a rule", () => {
  const folders = new Set(filesIn("provider").map((file) => relative(ROOT, join(file, ".."))));
  folders.delete("provider");
  const open = [...folders].filter((folder) => !RULES.some(([ruled]) => `${folder}/`.startsWith(`${ruled}/`)));
  expect(open).toEqual([]);
});

test("there is no import cycle", () => {
  const files = new Map(filesIn("provider").map((file) => [relative(ROOT, file).replace(/(\/index)?\.ts$/, ""), file]));
  const reached = (from: string): Set<string> => {
    const seen = new Set<string>();
    const waiting = [from];
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      const file = files.get(next);
      for (const target of file ? importsOf(file, true) : []) {
        if (seen.has(target)) continue;
        seen.add(target);
        waiting.push(target);
      }
    }
    return seen;
  };
  const cycles = [...files.keys()].filter((name) => reached(name).has(name));
  expect(cycles).toEqual([]);
});

test.each(["reservations", "access"])("%s prints nothing and ends no process", (folder) => {
  const acts = /\bconsole\.|\bprocess\.(stdout|stderr|exit|exitCode|argv)|from "commander"/;
  const wrong = filesIn(`provider/${folder}`).filter((file) => acts.test(readFileSync(file, "utf8")));
  expect(wrong).toEqual([]);
});

test("only the entry of the service touches its process", () => {
  const wrong = filesIn("provider/service")
    .filter((file) => /\bconsole\.|\bprocess\./.test(readFileSync(file, "utf8")))
    .map((file) => relative(ROOT, file));
  expect(wrong).toEqual(["provider/service/serve.ts"]);
});

test("only the command line, the service and the resources' runtime use reservations", () => {
  const users = ["provider/cli/", "provider/service/", "provider/reservations/", "provider/runtime.ts"];
  const wrong = filesIn("provider")
    .map((file) => ({ file: relative(ROOT, file), targets: importsOf(file) }))
    .filter(({ file }) => !users.some((user) => file.startsWith(user)))
    .filter(({ targets }) => targets.some((target) => target.startsWith("provider/reservations")));
  expect(wrong).toEqual([]);
});

test("the client loads nothing that a browser does not have, apart from zod", () => {
  const packages = new Set<string>();
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    for (const [, target] of readFileSync(file, "utf8").matchAll(
      /^(?:import|export) (?!type )[^;]*? from "([^"]+)";$/gm,
    ))
      if (target!.startsWith(".")) visit(join(file, "..", `${target}.ts`));
      else packages.add(target!);
  };
  visit(join(ROOT, "provider/client/index.ts"));
  expect([...packages]).toEqual(["zod"]);
  expect(seen.size).toBeGreaterThan(5);
});

test("nothing in the provider knows Pulumi", () => {
  const wrong = filesIn("provider").filter((file) => importsOf(file).some((target) => target.startsWith("@pulumi/")));
  expect(wrong).toEqual([]);
});

test("only composition roots build stores and SSH", () => {
  const roots = ["provider/runtime.ts", "provider/cli/"];
  const wrong = filesIn("provider")
    .map((file) => ({ file: relative(ROOT, file), targets: importsOf(file) }))
    .filter(
      ({ file }) =>
        !roots.some((root) => file.startsWith(root)) &&
        !file.startsWith("provider/pool") &&
        !file.startsWith("provider/host"),
    )
    .filter(({ targets }) =>
      targets.some((t) => t === "provider/pool" || t === "provider/pool/index" || t.startsWith("provider/host/ssh")),
    );
  expect(wrong).toEqual([]);
});
