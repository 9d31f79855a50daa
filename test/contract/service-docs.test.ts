import { execFile } from "node:child_process";
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Ctl, deploy, OVERLAYCTL } from "../unit/cli/ctl";
import { type ServiceProcess, startService } from "./service-process";

/** The commands of docs/service.md that need no root: all up to its section on errors. */
const page = readFileSync(join(__dirname, "../../docs/service.md"), "utf8");
const [commandPart] = page.split("\n## Errors\n");
const blocks = [...commandPart!.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block]) => block!);
const commands = blocks.flatMap((block) => block.trimEnd().split("\n"));

const ctl = new Ctl();
let service: ServiceProcess;

beforeAll(async () => {
  service = await startService(ctl, ["--demo"]);
  await pasteAll();
});
afterAll(async () => {
  await service?.stop();
  ctl.remove();
});

/** Runs the commands in their order in one shell, as a user pastes them. Nothing is set but the store. */
async function pasteAll(): Promise<void> {
  const overlayctl = join(ctl.folder, "overlayctl");
  writeFileSync(overlayctl, `#!/bin/sh\nexec "${process.execPath}" "${OVERLAYCTL}" "$@"\n`);
  chmodSync(overlayctl, 0o700);
  const script = [
    "set -o pipefail",
    'curl() { command curl -sS --fail-with-body "$@"; }', // a refused request fails
    ...commands.map((command, i) => `{ ${command}\n} >${i}.output 2>&1; echo $? >${i}.status`),
  ].join("\n");
  await promisify(execFile)("bash", ["-c", script.replaceAll("http://127.0.0.1:7447", service.url)], {
    cwd: ctl.folder,
    env: { PATH: `${ctl.folder}:${process.env.PATH}`, HOME: ctl.folder, OVERLAY_STORE: ctl.store },
    timeout: 50_000,
  });
}

test("has an example for every operation", async () => {
  const { paths } = (await (await fetch(`${service.url}/openapi.json`)).json()) as { paths: Record<string, object> };
  const examples = commands
    .filter((line) => line.includes("curl "))
    .map((line) => {
      const method = /-X (\w+)/.exec(line)?.[1] ?? "GET";
      const path = /(?:\$API|7447)([^"?\s]*)/.exec(line)![1]!;
      return `${method} ${line.includes("$API") ? "/api/overlay" : ""}${path}`;
    });
  for (const [path, methods] of Object.entries(paths))
    for (const method of Object.keys(methods)) {
      const pattern = new RegExp(`^${method.toUpperCase()} ${path.replace(/\{\w+\}/g, "[^/]+")}$`);
      expect(
        examples.filter((each) => pattern.test(each)),
        `${method} ${path}`,
      ).not.toEqual([]);
    }
});

/** What curl exits with when `--max-time` is over. */
const TIME_IS_OVER = 28;

test.each(commands.map((command, i) => [command, i] as const))("%s", (command, i) => {
  const read = (name: string) => readFileSync(join(ctl.folder, `${i}.${name}`), "utf8");
  const output = read("output");
  const expected = command.includes("--max-time") ? TIME_IS_OVER : 0;
  expect({ status: Number(read("status")), output }).toMatchObject({ status: expected });
  if (!command.startsWith("curl "))
    expect(output).toBe(""); // a variable or a function is set
  else if (command.includes("/events")) expect(output).toContain("event: claimed");
  else if (command.endsWith("/metrics")) expect(output).toContain("overlay_ipam_pool_total{");
  else expect(() => JSON.parse(output)).not.toThrow();
});

interface Example {
  example?: unknown;
  examples?: Record<string, { value: unknown }>;
}
interface Parameter extends Example {
  name: string;
  in: string;
}
interface Operation {
  parameters?: Parameter[];
  requestBody?: { content: Record<string, Example> };
}
const firstOf = ({ example, examples = {} }: Example = {}): unknown => example ?? Object.values(examples)[0]?.value;

/** What only an answer has: the token of a reservation, and the id of a webhook. */
type Made = Record<string, string>;

/** The request that the page /docs sends for an operation when nothing is typed in. */
async function tryOut(base: string, access: string, path: string, method: string, operation: Operation, made: Made) {
  const exampleOf = (parameter: Parameter) => made[parameter.name] ?? firstOf(parameter);
  const given = (operation.parameters ?? []).filter((each) => exampleOf(each) !== undefined);
  const textOf = (name: string) => String(exampleOf(given.find((each) => each.name === name)!));
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(textOf(name)));
  const query = new URLSearchParams(
    given.filter((each) => each.in === "query").map(({ name }): [string, string] => [name, textOf(name)]),
  );
  const example = firstOf(operation.requestBody?.content["application/json"]) as object | undefined;
  const body = example && JSON.stringify("token" in example ? { ...example, token: made.token } : example);
  const headers = { authorization: `Bearer ${access}`, ...(body && { "content-type": "application/json" }) };
  const answer = await fetch(`${base}${filled}?${query}`, { method, headers, ...(body && { body }) });
  if (answer.headers.get("content-type")?.includes("event-stream")) {
    await answer.body!.cancel();
    return { status: answer.status, text: "" };
  }
  return { status: answer.status, text: await answer.text() };
}

test("every operation in /docs works as it stands, on the store of --demo", { timeout: 60_000 }, async () => {
  const own = new Ctl();
  const [made] = await own.must("access", "create", "operator", "--scope", "admin");
  const demo = await startService(own, ["--demo"]);
  try {
    const { paths } = (await (await fetch(`${demo.url}/openapi.json`)).json()) as {
      paths: Record<string, Record<string, Operation>>;
    };
    const values: Made = {};
    for (const [path, methods] of Object.entries(paths))
      for (const [method, operation] of Object.entries(methods)) {
        const sent = await tryOut(demo.url, String(made!.token), path, method.toUpperCase(), operation, values);
        expect([method, path, sent]).toEqual([method, path, { status: 200, text: sent.text }]);
        const answer = path.includes("/ip/reserve") || path.endsWith("/webhooks") ? JSON.parse(sent.text) : {};
        for (const name of ["token", "id"]) if (typeof answer[name] === "string") values[name] = answer[name];
      }
  } finally {
    await demo.stop();
    own.remove();
  }
});

test("a store with pools gets no demo, and stays as it is", async () => {
  const store = `sqlite:${join(ctl.folder, "other.db")}`;
  await ctl.withPool((pool) => deploy(pool, ["node1"]), store);
  const list = async () => (await ctl.must("pool", "list", "--store", store)).map(({ pool }) => pool);
  const before = await list();
  const { code, stderr } = await ctl.run("serve", "--demo", "--listen", "127.0.0.1:0", "--store", store);
  expect([code, stderr]).toEqual([1, expect.stringMatching(/^INPUT_INVALID: The store has pools already, such as /)]);
  expect(await list()).toEqual(before);
});
