import type { z } from "zod";
import type { Caller, Scope } from "../../provider/access/caller";
import type { Context } from "../../provider/reservations";
import type { ServiceContext } from "../app";

/** What a method demands of its caller, and how its request is parsed. */
interface MethodBase<S extends z.ZodObject> {
  scope: Scope;
  /** false: it is served while the store does not answer, to callers that are known. */
  needsStore?: boolean;
  /** Has the fields of the message in the `.proto` file. Fields with a default value count as absent, unless they are `optional`. */
  request: S;
}

/** What the functions of methods get. */
export interface CallContext {
  overlay: Context;
  caller: Caller;
  service: ServiceContext;
}

export interface UnaryMethod<S extends z.ZodObject = z.ZodObject> extends MethodBase<S> {
  run(context: CallContext, request: z.output<S>): Promise<object>;
}

export interface StreamMethod<S extends z.ZodObject = z.ZodObject> extends MethodBase<S> {
  /** Messages until the signal is aborted. */
  stream(context: CallContext, request: z.output<S>, signal: AbortSignal): AsyncIterable<object>;
}

export type Method = UnaryMethod | StreamMethod;

/** Infer the type of the request from its schema. */
export const unary = <S extends z.ZodObject>(method: UnaryMethod<S>): UnaryMethod => method as unknown as UnaryMethod;
export const stream = <S extends z.ZodObject>(method: StreamMethod<S>): StreamMethod =>
  method as unknown as StreamMethod;
