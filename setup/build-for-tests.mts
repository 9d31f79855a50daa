import { build, isBuilt } from "./build.mjs";

/** vitest calls this before the tests that run dist/: it must match the sources. */
export default function buildForTests(): void {
  if (isBuilt()) return;
  console.log("Compiling the sources to dist/.");
  build();
}
