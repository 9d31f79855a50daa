import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { resources } from "../../provider/resources";
import { generated, staleFiles } from "../../setup/generate/main";
import { packageSchema } from "../../setup/generate/schema";

test("schema.json and the SDK's classes match the zod schemas", () => {
  expect(staleFiles()).toEqual([]);
});

const schema = packageSchema();

test("the schema has no path of the machine that generated it", () => {
  expect(JSON.stringify(schema)).not.toContain(homedir());
});
const runner = schema.resources["overlay:index:RunnerSubnet"]!;
const network = schema.resources["overlay:index:OverlayNetwork"]!;

test("secrets, defaults and replacing inputs are in the schema", () => {
  expect(network.inputProperties.hubConnection).toMatchObject({
    $ref: "#/types/overlay:index:Connection",
    secret: true,
  });
  expect(network.inputProperties.vxlanPort).toMatchObject({ type: "integer", default: 4789 });
  expect(network.inputProperties.networkName).toMatchObject({ willReplaceOnChanges: true });
  expect(network.properties.cidr).toMatchObject({ type: "string", description: "The whole range of the overlay." });
  expect(network.requiredInputs).toEqual(["hubConnection"]);
});

test("settings that may hold a password or a key are secret", () => {
  const settings = Object.entries(schema.config.variables);
  expect(settings.flatMap(([key, { secret }]) => (secret ? [key] : []))).toEqual([
    "store",
    "storeToken",
    "tokenKeys",
    "privateKey",
  ]);
});

test("a reference is a resource's values or a name, and fills in inputs", () => {
  expect(runner.inputProperties.network!.oneOf).toEqual([
    { type: "string" },
    { $ref: "#/types/overlay:index:NetworkSettings" },
  ]);
  expect(runner.requiredInputs).toEqual(["network", "connection"]);
});

test("a resource of the dynamic provider is an alias of the same one in the plugin", () => {
  expect(runner.aliases).toEqual([{ type: "pulumi-nodejs:dynamic/overlay:RunnerSubnet" }]);
});

test("every property of every resource is documented", () => {
  const all = Object.entries(schema.resources).flatMap(([token, { inputProperties, properties }]) =>
    Object.entries({ ...properties, ...inputProperties }).map(([key, { description }]) => [
      `${token}.${key}`,
      description,
    ]),
  );
  expect(all.filter(([, description]) => !description).map(([name]) => name)).toEqual([]);
});

test.each(resources.map(({ type, inputs }) => [type, Object.keys(inputs.shape)] as const))(
  "docs/resources.md has all inputs of %s",
  (type, names) => {
    const text = readFileSync(join(__dirname, "../../docs/resources.md"), "utf8");
    const section = text.split(/^## /m).find((each) => each.startsWith(`${type}\n`)) ?? "";
    expect(names.filter((name) => name !== "labels" && !section.includes(`\`${name}\``))).toEqual([]);
  },
);

test("no output has the name of an input: it would look like a change of it", () => {
  const twice = resources.flatMap(({ type, inputs, outputs }) =>
    Object.keys(outputs.shape)
      .filter((key) => key in inputs.shape)
      .map((key) => `${type}.${key}`),
  );
  expect(twice).toEqual([]);
});

test("an input that is one of a few strings has a named type in the schema, and no literal is in schema.json", () => {
  const { inputProperties } = schema.resources["overlay:index:IPPool"]!;
  expect(inputProperties.allocation).toMatchObject({ $ref: "#/types/overlay:index:Allocation", default: "hashed" });
  expect(schema.types["overlay:index:Allocation"]).toEqual({
    type: "string",
    enum: [{ value: "hashed" }, { value: "lowest" }, { value: "random" }, { value: "external" }],
  });
  expect(generated()["schema.json"]).not.toContain('"const"');
});
