/** A plugin of TypeDoc: a property that a zod schema declares has the text of its `.describe("…")` as its comment, and no default value. */
import { Comment, Converter, ReflectionKind } from "typedoc";
import ts from "typescript";

/** @param {import("typedoc").Application} app */
export function load(app) {
  app.converter.on(Converter.EVENT_CREATE_DECLARATION, (context, reflection) => {
    if (reflection.kind !== ReflectionKind.Property || reflection.comment) return;
    const declarations = context.getSymbolFromReflection(reflection)?.declarations ?? [];
    if (declarations.some(ts.isPropertyAssignment)) delete reflection.defaultValue;
    const description = declarations.map(findDescription).find((text) => text !== undefined);
    if (description) reflection.comment = new Comment([{ kind: "text", text: description }]);
  });
}

/** The text of the last `.describe("…")` in a chain of calls. @param {ts.Node} declaration @returns {string | undefined} */
function findDescription(declaration) {
  let node = ts.isPropertyAssignment(declaration) ? declaration.initializer : undefined;
  while (node && ts.isCallExpression(node) && ts.isPropertyAccessExpression(node.expression)) {
    const { name, expression } = node.expression;
    const [text] = node.arguments;
    if (name.text === "describe" && text && ts.isStringLiteralLike(text)) return text.text;
    node = expression;
  }
  return undefined;
}
