import { Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { type Category, categoryOf, type OverlayError } from "../../provider/errors";
import { shownText } from "../problem";
import { messageType, STATUS_PROTO } from "./api";

/** Errors as gRPC statuses, with a google.rpc.ErrorInfo in their details. */

/** Each category has one status. */
const STATUSES: Record<Category, status> = {
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

export const statusOf = ({ code }: Pick<OverlayError, "code">): status => STATUSES[categoryOf(code)];

const DOMAIN = "overlay";
const DETAILS = "grpc-status-details-bin";
const ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo";

/** Statuses are sent as headers, for which clients and proxies have limits. */
const MOST_CHARACTERS = 1000;

interface Status {
  code: number;
  message: string;
  details: { type_url: string; value: Buffer }[];
}

interface ErrorInfo {
  reason: string;
  domain: string;
  metadata: Record<string, string>;
}

const google = loadSync(STATUS_PROTO, { keepCase: true });
const statusMessage = messageType<Status>(google, "google.rpc.Status");
const errorInfoMessage = messageType<ErrorInfo>(google, "google.rpc.ErrorInfo");

/** `metadata` is sent with it. */
export function toServiceError(error: OverlayError, metadata = new Metadata()): ServiceError {
  const { code: reason, property } = error;
  const shown = shownText(error);
  const [what, fix] = [toHeaderText(shown.what), toHeaderText(shown.fix)];
  const [code, message] = [statusOf(error), `${reason}: ${what} ${fix}`];
  const info = { what, fix, ...(property !== undefined && { property }) };
  const value = errorInfoMessage.serialize({ reason, domain: DOMAIN, metadata: info });
  metadata.set(DETAILS, statusMessage.serialize({ code, message, details: [{ type_url: ERROR_INFO, value }] }));
  return Object.assign(new Error(message), { code, details: message, metadata });
}

/** Unpaired surrogates cannot be encoded. */
const toHeaderText = (text: string): string => {
  const whole = text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS - 1)}…` : text;
  return whole.replace(/\p{Surrogate}/gu, "\ufffd");
};
