import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { must, run } from "../../lab/process";
import { pulumiEnv, root } from "../../setup/tools.mjs";

/** A project in a folder of its own, with the packed package instead of this repository. */
const folder = mkdtempSync(join(tmpdir(), "overlay-package-"));

afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function installPackage(): Promise<void> {
  const modules = join(folder, "node_modules");
  mkdirSync(join(modules, "pulumi-overlay"), { recursive: true });
  for (const name of readdirSync(join(root, "node_modules")))
    if (name !== "pulumi-overlay") symlinkSync(join(root, "node_modules", name), join(modules, name));
  symlinkSync(join(root, "node_modules", "ts-node-10"), join(modules, "ts-node"));
  const args = ["pack", "--json", "--ignore-scripts", "--pack-destination", folder];
  const { stdout } = await run(["npm", ...args], { cwd: root });
  const archive = join(folder, JSON.parse(stdout)[0].filename);
  await must(["tar", "-xzf", archive, "-C", join(modules, "pulumi-overlay"), "--strip-components=1"]);
}

/** As README says for programs with `"type": "module"`: ts-node 10 is installed, and this is in tsconfig.json. */
const COMPILER_OPTIONS = { strict: true, target: "ES2022", module: "nodenext", skipLibCheck: true };

const PROGRAM = `import * as pulumi from "@pulumi/pulumi";
import * as overlay from "pulumi-overlay";
import { IPReservation } from "pulumi-overlay";

const pool = new overlay.IPPool("public", { ranges: ["198.51.100.0/24"] });
const web: overlay.IPReservation = new IPReservation("web", { pool, ip: "198.51.100.7" });
export const message: pulumi.Output<string> = pulumi.interpolate\`web is at \${web.ip}\`;
`;

beforeAll(installPackage);

test("every Pulumi project among the examples of the package is whole: Pulumi.yaml, program, TypeScript and its options", () => {
  const examples = join(folder, "node_modules/pulumi-overlay/examples");
  const projects = readdirSync(examples, { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith("Pulumi.yaml"))
    .map((path) => join(examples, dirname(path)));
  expect(projects).toHaveLength(11);
  for (const project of projects) {
    expect([project, readdirSync(project).sort()]).toEqual([
      project,
      ["Pulumi.yaml", "index.ts", "package.json", "tsconfig.json"],
    ]);
    const { devDependencies } = JSON.parse(readFileSync(join(project, "package.json"), "utf8"));
    expect(devDependencies).toEqual({ typescript: ">=5 <7" }); // Pulumi's own 3.8 is too old for the options
  }
});

test('a TypeScript program with "type": "module" runs with the packages that README names', async () => {
  writeFileSync(join(folder, "Pulumi.yaml"), "name: modules\nruntime: nodejs\n");
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: COMPILER_OPTIONS }));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ type: "module", main: "index.ts" }));
  writeFileSync(join(folder, "index.ts"), PROGRAM);
  mkdirSync(join(folder, "state"));
  const env = {
    ...pulumiEnv(),
    HOME: folder,
    NODE_PATH: join(folder, "node_modules"), // @pulumi/pulumi is a link: by its real path it would not find ts-node
    PULUMI_HOME: join(folder, "home"),
    PULUMI_BACKEND_URL: `file://${join(folder, "state")}`,
    PULUMI_CONFIG_PASSPHRASE: "test",
    PULUMI_SKIP_UPDATE_CHECK: "true",
    OVERLAY_STORE: `sqlite:${join(folder, "pool.db")}`,
  };
  const pulumi = async (...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await run(["pulumi", "--non-interactive", ...args], { cwd: folder, env });
    expect(`${code} ${code === 0 ? "" : stdout + stderr}`).toBe("0 ");
    return stdout;
  };
  await pulumi("stack", "init", "dev");
  await pulumi("up", "--yes", "--skip-preview", "--stack", "dev");
  expect(JSON.parse(await pulumi("stack", "output", "--json", "--stack", "dev"))).toEqual({
    message: "web is at 198.51.100.7",
  });
});
