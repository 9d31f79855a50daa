import { OverlayError } from "../errors";
import type { AccessToken } from "../ipam/types";
import type { Bounds } from "./bounds";

/** `admin` includes all others, and `deploy` includes `preview`. */
export type Scope = AccessToken["scopes"][number];

/** The sender of a request, and the part of the store that it may see and change. Without bounds, it is the operator. */
export interface Caller extends Bounds {
  /** The name of its access token, which the history gets. */
  name: string;
  scopes: readonly Scope[];
}

export const hasScope = ({ scopes }: Pick<Caller, "scopes">, scope: Scope): boolean =>
  scopes.includes(scope) || scopes.includes("admin") || (scope === "preview" && scopes.includes("deploy"));

export function requireScope(caller: Caller, scope: Scope): void {
  if (hasScope(caller, scope)) return;
  throw new OverlayError(
    "ACCESS_DENIED",
    `This needs the scope ${scope}; access token ${caller.name} has ${caller.scopes.join(", ")}.`,
    `Use a token that was made with \`overlayctl access create NAME --scope ${scope}\`.`,
  );
}
