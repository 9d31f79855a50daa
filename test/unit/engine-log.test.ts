import { LogRequest, LogSeverity } from "@pulumi/pulumi/proto/engine_pb";
import { expect, test } from "vitest";
import { encodeLog } from "../../provider/engine-log";

test.each([
  ["warning", "drift of r1: µ", "urn:pulumi:dev::p::t::r1", false, LogSeverity.WARNING],
  ["info", "x".repeat(20_000), "", true, LogSeverity.INFO],
] as const)("Pulumi reads a message as it was sent: %s", (severity, text, urn, isEphemeral, expected) => {
  const read = LogRequest.deserializeBinary(encodeLog({ severity, text, urn, isEphemeral })).toObject();
  expect(read).toEqual({ severity: expected, message: text, urn, streamid: 0, ephemeral: isEphemeral });
});
