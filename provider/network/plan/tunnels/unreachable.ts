import type { Layout } from "../../../addressing/layout";
import type { Route } from "../../model/items";

const UNREACHABLE_METRIC = 4096;

/** Packets of the overlay's range that no other route takes are rejected, and do not leave by a default route. */
export const unreachableRoute = ({ family, cidr }: Layout): Route => ({
  kind: "route",
  family,
  dst: cidr,
  metric: UNREACHABLE_METRIC,
});
