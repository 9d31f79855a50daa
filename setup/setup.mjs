/**
 * Makes a machine that has Node and npm ready for `npm start`, `npm test` or `npm run bench`: npm packages, Debian packages,
 * a Pulumi CLI, dist/. Says what it does; does nothing when all is there. Without any dependency: it comes first.
 */
import { parseArgs } from "node:util";
import { build, isBuilt } from "./build.mjs";
import { ensureDebianPackages, ensureNpmPackages } from "./packages.mjs";
import { SetupError, say } from "./progress.mjs";
import { ensurePulumi } from "./pulumi.mjs";
import { missingForLab } from "./tools.mjs";

const works = "What works here: `npm test` (unit and contract tests), `npm run overlayctl`, and the provider itself.";

/** @param {string} purpose */
async function setUp(purpose) {
  if (Number(process.versions.node.split(".")[0]) < 20)
    throw new SetupError(`Node 20 or later is needed, not ${process.version}.`);
  const reasons = missingForLab();
  if (reasons.length > 0 && purpose !== "test")
    throw new SetupError(
      `This makes Linux hosts out of the kernel's namespaces and needs Linux and root; ${reasons.join(", and ")}. ${works}`,
    );
  await ensureNpmPackages();
  if (reasons.length === 0) {
    await ensureDebianPackages(purpose);
    await ensurePulumi();
  }
  if (!isBuilt()) {
    say("Compiling provider/ and sdk/ to dist/.");
    build();
  }
}

const { values } = parseArgs({ options: { for: { type: "string", default: "start" } } });
setUp(values.for).catch((error) => {
  console.error(error instanceof SetupError ? error.message : error);
  process.exitCode = 1;
});
