import type { Facts } from "./facts";
import { foreignRoutes, foreignRouteText } from "./foreign-routes";
import type { Want } from "./steps";

/** Objects of other programs that work against what this owner has on the host, as drift. They are never removed by us. */
export const foreignTexts = (want: Want, facts: Facts): string[] => foreignRoutes(want, facts).map(foreignRouteText);
