import { describe, expect, test } from "vitest";
import type { z } from "zod";
import { resources } from "../../provider/resources";
import { Editor } from "./editor";

const editor = new Editor();

const withInputs = (type: string, inputs: string): string => `new overlay.${type}("x", { ${inputs} });`;

describe.each(resources.map((def) => [def.type, def] as const))(
  "%s",
  (type, { inputs, exactlyOneOf = [], description, example }) => {
    test("the editor completes every input", { timeout: 60_000 }, () => {
      expect(editor.completions(withInputs(type, "|"))).toEqual(expect.arrayContaining(Object.keys(inputs.shape)));
    });

    test.each(Object.entries(inputs.shape as Record<string, z.ZodType>))(
      "hovering over %s shows what it is",
      (key, schema) => {
        const chosen = exactlyOneOf.includes(key) ? key : exactlyOneOf[0];
        const others = chosen === undefined || chosen === key ? "" : `${chosen}: "a", `;
        const value = key === chosen ? '"a"' : "undefined as never";
        const shown = editor.hover(withInputs(type, `${others}${key}|: ${value}`));
        const { description: text } = schema;
        expect(text).toMatch(/\.$/);
        expect(shown).toContain(text);
      },
    );

    test("the comment of the class has an example", () => {
      const shown = editor.hover(`new overlay.${type}|("x", undefined as never);`);
      expect(shown).toContain(description);
      expect(shown).toContain(example);
    });
  },
);

test.each<[string, string, string[]]>([
  [
    "OverlayNetwork",
    "hubConnection: { | }",
    ["host", "port", "user", "privateKey", "privateKeyPath", "proxy", "sudo", "hostKey"],
  ],
  ["OverlayNetwork", 'docker: { enabled: "|" }', ["auto", "on", "off"]],
  ["OverlayNetwork", "docker: { | }", ["enabled", "networkName", "range"]],
  ["IPPool", 'ranges: [], type: "|"', ["clusterIP", "loadBalancer", "vip", "nodePort", "container"]],
  ["IPReservation", 'network: "n", placement: "|"', ["mostFree", "packed", "spread"]],
  ["StaticIP", "forwards: [{ | }]", ["protocol", "port", "to", "toPort", "name"]],
  ["StaticIP", 'forwards: [{ protocol: "|" }]', ["tcp", "udp", "sctp"]],
])("%s { %s } completes what is inside", (type, inputs, names) => {
  expect(editor.completions(withInputs(type, inputs))).toEqual(expect.arrayContaining(names));
});

test("the examples of the classes are one program without errors", () => {
  expect(editor.errors(resources.map(({ example }) => example).join("\n"))).toEqual([]);
});
