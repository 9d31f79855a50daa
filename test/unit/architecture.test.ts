import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { expect, test } from "vitest";

/** Who may import whom. What decides (addressing, network) imports nothing that can act. */
const ROOT = join(__dirname, "../..");
const RULES: [folder: string, may: string[]][] = [
  ["provider/addressing", ["provider/errors", "provider/addressing", "ip-address", "node:crypto"]],
  [
    "provider/network",
    ["provider/errors", "provider/addressing", "provider/network", "provider/owner", "node:crypto", "zod"],
  ],
  [
    "provider/resources",
    [
      "provider/errors",
      "provider/resources",
      "provider/addressing",
      "provider/network",
      "provider/resource",
      "provider/pool-names",
      "provider/owner",
      "provider/host/types",
      "provider/pool/types",
      "zod",
    ],
  ],
  [
    "provider/lifecycle",
    [
      "provider/errors",
      "provider/invalid-input",
      "provider/owner",
      "provider/addressing",
      "provider/lifecycle",
      "provider/network",
      "provider/resource",
      "provider/pool-names",
      "provider/pool/types",
      "provider/host/types",
      "provider/host/reconcile",
      "provider/host/machine",
      "node:crypto",
      "zod",
    ],
  ],
  [
    "provider/reservations",
    [
      "provider/errors",
      "provider/owner",
      "provider/reservations",
      "provider/addressing",
      "provider/resource",
      "provider/pool-names",
      "provider/resources",
      "provider/pool/types",
      "provider/pool/token",
      "provider/pool/wording",
      "node:crypto",
      "node:timers/promises",
      "zod",
    ],
  ],
  ["sdk", ["sdk", "@pulumi/pulumi", "node:crypto"]],
];
/** Types cost nothing at run time and tie nobody to an implementation. */
const importsOf = (file: string): string[] =>
  [...readFileSync(file, "utf8").matchAll(/^(?:import|export) (type )?[^;]*? from "([^"]+)";$/gm)]
    .filter(([text, type]) => !type || !file.includes("lifecycle") || !text.includes("host/"))
    .map(([, , target]) => (target!.startsWith(".") ? relative(ROOT, join(file, "..", target!)) : target!));

const filesIn = (folder: string): string[] =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => join(ROOT, folder, name));

test.each(RULES)("%s imports only what it may", (folder, may) => {
  const wrong = filesIn(folder).flatMap((file) =>
    importsOf(file)
      .filter((target) => !may.some((allowed) => target === allowed || target.startsWith(`${allowed}/`)))
      .map((target) => `${relative(ROOT, file)} imports ${target}`),
  );
  expect(wrong).toEqual([]);
});

test("reservations print nothing and end no process", () => {
  const acts = /\bconsole\.|\bprocess\.(stdout|stderr|exit|exitCode|argv)|from "commander"/;
  const wrong = filesIn("provider/reservations").filter((file) => acts.test(readFileSync(file, "utf8")));
  expect(wrong).toEqual([]);
});

test("only the command line and the resources' runtime use reservations", () => {
  const users = ["provider/cli/", "provider/reservations/", "provider/runtime.ts"];
  const wrong = filesIn("provider")
    .map((file) => ({ file: relative(ROOT, file), targets: importsOf(file) }))
    .filter(({ file }) => !users.some((user) => file.startsWith(user)))
    .filter(({ targets }) => targets.some((target) => target.startsWith("provider/reservations")));
  expect(wrong).toEqual([]);
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
      targets.some((t) => t === "provider/pool" || t === "provider/pool/index" || t === "provider/host/ssh"),
    );
  expect(wrong).toEqual([]);
});
