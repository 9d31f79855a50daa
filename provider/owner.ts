/**
 * An owner is a scope and a URN, `SCOPE/urn:pulumi:STACK::PROJECT::TYPE::NAME`: the stack is what stands before the type.
 */
export function sameStack(a: string, b: string): boolean {
  const stack = (owner: string) => owner.split("::").slice(0, 2);
  return stack(a).length === 2 && stack(a).join("::") === stack(b).join("::");
}
