import { expect, test } from "vitest";
import { describePool } from "../../../provider/pool-names";

test.each([
  ["network/training", "network training"],
  ["runner/training/node1", "runner node1 of network training"],
  ["pool/lb", "IPPool lb"],
  ["pool/tenants/overlay", "the range for tenants' pools of type overlay"],
  ["pool/tenant/acme/shop/overlay", "the pool of type overlay of tenant acme/shop"],
  ["pool/tenants", "IPPool tenants"],
  ["pool/tenant", "IPPool tenant"],
  ["space/default", "address space default"],
  ["space/ports/nodes", "the ports of IPPool nodes"],
  ["scheduler", "pool scheduler"],
])("errors call the pool %s %s", (name, words) => {
  expect(describePool(name)).toBe(words);
});
