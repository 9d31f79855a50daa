import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { root } from "../../setup/tools.mjs";

/** The package as `npm publish` would upload it. */
let files: string[];

beforeAll(() => {
  const listing = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], {
    cwd: root,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  files = JSON.parse(listing)[0].files.map(({ path }: { path: string }) => path);
});

const linksOf = (text: string): string[] =>
  Array.from(text.matchAll(/\]\(([^)#\s]+)[^)]*\)/g), ([, target]) => target!).filter(
    (target) => !/^\w+:/.test(target),
  );

test("every relative link of a page in the package leads to a file or folder in it", () => {
  const pages = files.filter((file) => file.endsWith(".md"));
  expect(pages).toContain("README.md");
  const broken = pages.flatMap((page) =>
    linksOf(readFileSync(join(root, page), "utf8"))
      .map((target) => join(dirname(page), target))
      .filter((target) => !files.some((file) => file === target || file.startsWith(`${target}/`)))
      .map((target) => `${page}: ${target}`),
  );
  expect(broken).toEqual([]);
});

test("the package has its entry points, its examples and nothing of the tests", () => {
  const { main, types, bin } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const entries = [main, types, ...Object.values<string>(bin)].map((path) => join(path));
  expect(files).toEqual(
    expect.arrayContaining([...entries, "examples/two-tenants/index.ts", "schema.json", "LICENSE"]),
  );
  const tops = new Set(files.map((file) => file.split("/")[0]));
  expect([...tops].sort()).toEqual([
    ...["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"],
    ...["deploy", "dist", "docs", "examples", "package.json", "schema.json"],
  ]);
});

test("installing the package from a registry runs no script of it", () => {
  const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const ofInstall = ["preinstall", "install", "postinstall", "prepublish"];
  expect(ofInstall.filter((name) => name in scripts)).toEqual([]);
});
