import { setTimeout as sleep } from "node:timers/promises";
import * as pulumi from "@pulumi/pulumi";

/**
 * Runs examples/prepared-hosts with Pulumi's mocks, since the plugin of @pulumi/command comes only from Pulumi's own servers,
 * and prints what it registers: one line of JSON a resource.
 */
pulumi.runtime.setAllConfig(
  {
    "overlay-prepared-hosts:hub": "192.0.2.1",
    "overlay-prepared-hosts:runners": JSON.stringify({ r1: "192.0.2.11", r2: "192.0.2.12" }),
    "overlay-prepared-hosts:privateKey": "key",
  },
  ["overlay-prepared-hosts:privateKey"],
);
pulumi.runtime.setMocks(
  {
    newResource: async ({ type, name, inputs }) => {
      const { __provider: _, ...rest } = inputs;
      if (type.startsWith("command:")) await sleep(100); // a resource that does not wait for it is printed first
      if (type !== "pulumi:pulumi:Stack") console.log(JSON.stringify({ type, name, inputs: rest }));
      return { id: name, state: inputs };
    },
    call: () => ({}),
  },
  "overlay-prepared-hosts",
  "dev",
  false,
  "lab",
);
void import("../../../examples/prepared-hosts/index.js");
