/**
 * Makes a machine that has Node and npm ready for `npm start`, `npm test`, `npm run test:vm`, `npm run bench` or `npm run check`: npm
 * packages and dist/, and for all but `check` Debian packages and a Pulumi CLI. Says what it does; does nothing when all is there.
 * Without any dependency: it comes first.
 */
import { parseArgs } from "node:util";
import { build, isBuilt } from "./build.mjs";
import { ensureDebianPackages, ensureNpmPackages, linkItself } from "./packages.mjs";
import { say } from "./progress.mjs";
import { ensurePulumi, NoPulumi } from "./pulumi.mjs";
import { whyNoLab } from "./tools.mjs";
import { ensureVmImage } from "./vm-image.mjs";

const { values } = parseArgs({ options: { for: { type: "string", default: "start" } } });
setUp(values.for).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});

/** @param {string} purpose */
async function setUp(purpose) {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
  if (major < 20 || (major === 20 && minor < 12))
    throw new Error(`Node 20.12 or later is needed, not ${process.version}.`);
  const needsLab = purpose !== "check";
  const reason = needsLab ? whyNoLab() : undefined;
  if (reason !== undefined && purpose !== "test")
    throw new Error(
      `This makes Linux hosts out of the kernel's namespaces, which takes Linux and root: ${reason}. ` +
        "What works without: `npm test` (its unit and contract tests), `npm run overlayctl`, and the provider itself.",
    );
  await ensureNpmPackages();
  linkItself();
  if (needsLab && reason === undefined) await setUpLab(purpose);
  if (!isBuilt()) {
    say("Compiling provider/ and sdk/ to dist/.");
    build();
  }
}

/** @param {string} purpose */
async function setUpLab(purpose) {
  await ensureDebianPackages(purpose);
  if (purpose === "vm") await ensureVmImage();
  await ensurePulumi().catch((error) => {
    if (purpose !== "test" || !(error instanceof NoPulumi)) throw error;
    say(error.message); // the other tests do without
  });
}
