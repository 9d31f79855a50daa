import type { Difference } from "./compare";
import type { Facts } from "./facts";
import { foreignDeviceTexts, isForeignDevice } from "./foreign-devices";
import { foreignRoutes, foreignRouteText } from "./foreign-routes";
import { foreignRuleTexts } from "./foreign-rules";
import type { Want } from "./steps";

/** Objects of other programs that work against what this owner has on the host, as drift. They are never removed by us. */
export const foreignTexts = (want: Want, facts: Facts): string[] => [
  ...foreignDeviceTexts(want, facts),
  ...foreignRoutes(want, facts).map(foreignRouteText),
  ...foreignRuleTexts(want, facts),
];

/** Without those of devices that other programs have made: no `up` mends them. */
export const mendable = (all: Difference[], want: Want, facts: Facts): Difference[] =>
  all.filter(({ item }) => !isForeignDevice(item, want, facts));
