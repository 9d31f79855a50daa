import { Metadata, status } from "@grpc/grpc-js";
import { describe, expect, test } from "vitest";
import { CODES, categoryOf, OverlayError } from "../../../../provider/errors";
import { statusOf, toServiceError } from "../../../../service/grpc/status";

const EXPECTED: Record<string, status> = {
  invalid: status.INVALID_ARGUMENT,
  unauthenticated: status.UNAUTHENTICATED,
  forbidden: status.PERMISSION_DENIED,
  notFound: status.NOT_FOUND,
  conflict: status.FAILED_PRECONDITION,
  exhausted: status.RESOURCE_EXHAUSTED,
  gone: status.NOT_FOUND,
  rateLimited: status.RESOURCE_EXHAUSTED,
  hostFailed: status.UNAVAILABLE,
  unavailable: status.UNAVAILABLE,
  internal: status.INTERNAL,
};

test.each(CODES)("%s has the status of its category", (code) => {
  expect(statusOf(new OverlayError(code, "What.", "Fix."))).toBe(EXPECTED[categoryOf(code)]);
});

describe("a status", () => {
  test("has the text of the error, and keeps the metadata that it gets", () => {
    const metadata = new Metadata();
    metadata.set("x-request-id", "7");
    const error = toServiceError(new OverlayError("IP_IN_USE", "It is used.", "Take another."), metadata);
    expect(error).toMatchObject({ code: status.FAILED_PRECONDITION, details: "IP_IN_USE: It is used. Take another." });
    expect(Object.keys(error.metadata.getMap()).sort()).toEqual(["grpc-status-details-bin", "x-request-id"]);
  });

  test("of an internal error does not say what happened", () => {
    const error = toServiceError(new OverlayError("STORE_CORRUPT", "Row k/secret is damaged.", "Repair it."));
    expect(error.details).toBe(
      "STORE_CORRUPT: The service failed. Its log has the reason, under the id in the header X-Request-Id.",
    );
    expect(String(error.metadata.get("grpc-status-details-bin")[0])).not.toContain("k/secret");
  });

  test("fits into headers, also with a long text and with halves of characters", () => {
    const error = toServiceError(new OverlayError("POOL_NOT_FOUND", `\ud800${"ä".repeat(100_000)}`, "Fix."));
    expect(error.details).toMatch(/^POOL_NOT_FOUND: \ufffdä+… Fix\.$/);
    expect(() => encodeURI(error.details)).not.toThrow();
    const [bytes] = error.metadata.get("grpc-status-details-bin");
    expect(encodeURI(error.details).length + (bytes as Buffer).length * 1.34).toBeLessThan(20_000);
  });
});
