import { expect, test } from "vitest";
import { imagePackages } from "../../../setup/vm-image.mjs";

test.each([
  ["bookworm", false],
  ["trixie", true],
  ["forky", true],
])("an emulated machine of %s gets docker-cli: %s", (suite, has) => {
  expect(imagePackages(suite)).toContain("docker.io");
  expect(imagePackages(suite).includes("docker-cli")).toBe(has);
});
