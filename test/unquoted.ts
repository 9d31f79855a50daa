/** The part of a script that a shell expands: without text in single quotes and in the bodies of `<<'END'`. */
export function unquoted(script: string): string {
  const withoutBodies = script.replace(/(<<'END'[^\n]*)\n[\s\S]*?\nEND$/gm, "$1");
  return withoutBodies.replace(/'[^']*'|\\./g, "");
}
