import { build, isBuilt } from "./build.mjs";

/** vitest calls this before the tests that run dist/: it must be what the sources say. */
export default function buildForTests(): void {
  if (isBuilt()) return;
  console.log("Compiling provider/ and sdk/ to dist/.");
  build();
}
