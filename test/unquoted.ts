/** What a shell would look at: without what stands in single quotes and in the bodies of `<<'END'`. */
export function unquoted(script: string): string {
  const withoutBodies = script.replace(/(<<'END'[^\n]*)\n[\s\S]*?\nEND$/gm, "$1");
  return withoutBodies.replace(/'[^']*'|\\./g, "");
}
