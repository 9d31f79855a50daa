import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";

/** A secret, as Pulumi's wire form wraps it. */
interface Secret {
  value: Record<string, unknown>;
}
interface Registered {
  type: string;
  name: string;
  inputs: { connection?: Secret; hubConnection?: Secret; create?: string };
}

test("examples/prepared-hosts: @pulumi/command prepares hosts with the same connection before they join", async () => {
  const tsx = join(__dirname, "../../node_modules/.bin/tsx");
  const { stdout } = await promisify(execFile)(tsx, [join(__dirname, "mocked/prepared-hosts.ts")]);
  const registered = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Registered);
  const place = (name: string) => registered.findIndex((resource) => resource.name === name);
  expect(registered.map(({ name }) => name).sort()).toEqual([
    "prepare-hub",
    "prepare-r1",
    "prepare-r2",
    "r1",
    "r2",
    "training",
  ]);
  expect(place("prepare-hub")).toBeLessThan(place("training"));
  for (const runner of ["r1", "r2"]) {
    expect(place(`prepare-${runner}`)).toBeLessThan(place(runner));
    expect(place("training")).toBeLessThan(place(runner));
    const [command, subnet] = [registered[place(`prepare-${runner}`)]!, registered[place(runner)]!];
    expect(command.inputs.connection!.value).toMatchObject(subnet.inputs.connection!.value);
    expect(command.inputs.create).toContain("iproute2 iptables");
    expect(subnet.inputs.hubConnection!.value).toMatchObject({ host: "192.0.2.1", user: "root" });
  }
});
