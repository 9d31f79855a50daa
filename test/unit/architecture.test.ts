import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { expect, test } from "vitest";

/**
 * Which folder may import which. Pure folders do no I/O: they import no package but those that are listed here. Nothing imports upwards: a
 * folder may import those that stand before it.
 */
const ROOT = join(__dirname, "../..");
const PURE: Record<string, string[]> = {
  "provider/addressing": ["ip-address", "node:crypto"],
  "provider/network": ["zod", "node:crypto", "node:util"],
  "provider/ipam/decide": ["node:crypto", "node:util"],
};
const LAYERS = [
  ["provider/addressing"],
  ["provider/network", "provider/ipam"],
  ["provider/host"],
  ["provider/resources"],
  ["provider/lifecycle", "provider/reservations"],
  ["provider/access"],
  ["provider/webhooks"],
  ["service"],
  ["client"],
  ["cli"],
];
const importsOf = (file: string): string[] =>
  [...readFileSync(file, "utf8").matchAll(/^(?:import|export) (type )?[^;]*? from "([^"]+)";$/gm)]
    .filter(([, type]) => !type)
    .map(([, , target]) => (target!.startsWith(".") ? relative(ROOT, join(file, "..", target!)) : target!));

const ROOMS = ["provider", "service", "client", "cli"];
const filesIn = (folder: string): string[] =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => join(ROOT, folder, name));

const allFiles = (): string[] => ROOMS.flatMap(filesIn);
const isIn = (folder: string, target: string): boolean => target === folder || target.startsWith(`${folder}/`);

test.each(Object.entries(PURE))("%s does no I/O", (folder, packages) => {
  const wrong = filesIn(folder).flatMap((file) =>
    importsOf(file)
      .filter((target) => !target.startsWith("provider/") && !packages.includes(target))
      .map((target) => `${relative(ROOT, file)} imports ${target}`),
  );
  expect(wrong).toEqual([]);
});

test("nothing imports upwards", () => {
  const layerOf = (target: string): number => LAYERS.findIndex((layer) => layer.some((folder) => isIn(folder, target)));
  const wrong = LAYERS.flat().flatMap((folder) =>
    filesIn(folder).flatMap((file) =>
      importsOf(file)
        .filter((target) => layerOf(target) > layerOf(folder))
        .map((target) => `${relative(ROOT, file)} imports ${target}`),
    ),
  );
  expect(wrong).toEqual([]);
});

test("every folder of the provider has a layer", () => {
  const folders = readdirSync(join(ROOT, "provider"), { withFileTypes: true }).filter((entry) => entry.isDirectory());
  const names = folders.map(({ name }) => `provider/${name}`);
  expect([...names, ...ROOMS.slice(1)].sort()).toEqual(LAYERS.flat().sort());
});

test("there is no import cycle", () => {
  const files = new Map(allFiles().map((file) => [relative(ROOT, file).replace(/(\/index)?\.ts$/, ""), file]));
  const reached = (from: string): Set<string> => {
    const seen = new Set<string>();
    const waiting = [from];
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      const file = files.get(next);
      for (const target of file ? importsOf(file) : []) {
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
  const wrong = filesIn("service")
    .filter((file) => /\bconsole\.|\bprocess\./.test(readFileSync(file, "utf8")))
    .map((file) => relative(ROOT, file));
  expect(wrong).toEqual(["service/serve.ts"]);
});

test("only the command line, the service and the resources' runtime use reservations", () => {
  const users = ["cli/", "service/", "provider/reservations/", "provider/runtime.ts"];
  const wrong = allFiles()
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
  visit(join(ROOT, "client/index.ts"));
  expect([...packages]).toEqual(["zod"]);
  expect(seen.size).toBeGreaterThan(5);
});

test("nothing in the provider knows Pulumi", () => {
  const wrong = allFiles().filter((file) => importsOf(file).some((target) => target.startsWith("@pulumi/")));
  expect(wrong).toEqual([]);
});

test("only composition roots build stores and SSH", () => {
  const roots = ["provider/runtime.ts", "cli/"];
  const wrong = allFiles()
    .map((file) => ({ file: relative(ROOT, file), targets: importsOf(file) }))
    .filter(
      ({ file }) =>
        !roots.some((root) => file.startsWith(root)) &&
        !file.startsWith("provider/ipam") &&
        !file.startsWith("provider/host"),
    )
    .filter(({ targets }) =>
      targets.some((t) => t === "provider/ipam" || t === "provider/ipam/index" || t.startsWith("provider/host/ssh")),
    );
  expect(wrong).toEqual([]);
});
