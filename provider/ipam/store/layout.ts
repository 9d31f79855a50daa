import { OverlayError } from "../../errors";
import { LAYOUT } from "./store";

export const unknownLayout = (place: string, layout: number): OverlayError => {
  const what = `The tables in ${place} have layout ${layout}; this program knows layouts up to ${LAYOUT}.`;
  return new OverlayError("STORE_VERSION", what, "Update pulumi-overlay.");
};

export const olderTables = (place: string): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `${place} has the tables of an older release of pulumi-overlay, which this one cannot read.`,
    "Use a new store, and fill it with `overlayctl recover`.",
  );
