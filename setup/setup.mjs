/**
 * Installs what a command of package.json needs on a machine with Node and npm. `check` and `overlayctl` need npm packages, `service` also
 * Debian packages. All others also need a Pulumi CLI. All but `overlayctl` need dist/. Prints what it does, on standard error, and does
 * nothing if nothing is missing. It imports no npm package, because it runs before they are installed.
 */
import { parseArgs } from "node:util";
import { build, isBuilt } from "./build.mjs";
import { ensureDebianPackages, ensureNpmPackages, linkItself } from "./packages.mjs";
import { say } from "./progress.mjs";
import { ensurePulumi, NoPulumi } from "./pulumi.mjs";
import { whyNoLab } from "./tools.mjs";
import { ensureVmImage } from "./vm-image.mjs";

/** Commands that start no lab. */
const WITHOUT_LAB = ["check", "overlayctl", "service"];
/** Those of them that need Debian packages. */
const WITH_PACKAGES = ["service"];
/** Commands that work, in part, without a Pulumi CLI. */
const WITHOUT_PULUMI = ["test", "lab"];

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
  const needsLab = !WITHOUT_LAB.includes(purpose);
  const reason = needsLab ? whyNoLab() : undefined;
  if (reason !== undefined && purpose !== "test")
    throw new Error(
      `This command makes hosts out of network namespaces, which needs Linux and root: ${reason}. ` +
        "Without them these work: `npm test` (unit and contract tests), `npm run overlayctl`, and the provider itself.",
    );
  await ensureNpmPackages();
  linkItself();
  if (needsLab && reason === undefined) await setUpLab(purpose);
  if (WITH_PACKAGES.includes(purpose)) await ensureDebianPackages(purpose);
  if (purpose !== "overlayctl" && !isBuilt()) {
    say("Compiling the sources to dist/.");
    build();
  }
}

/** @param {string} purpose */
async function setUpLab(purpose) {
  await ensureDebianPackages(purpose);
  if (purpose === "vm") await ensureVmImage();
  await ensurePulumi().catch((error) => {
    if (!WITHOUT_PULUMI.includes(purpose) || !(error instanceof NoPulumi)) throw error;
    say(error.message);
  });
}
