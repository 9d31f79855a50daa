import { hash } from "node:crypto";
import { z } from "zod";
import { OverlayError } from "../../errors";
import { AttemptEnded, type StackPlan } from "../operations";
import { extentCodec } from "../storage/records";
import { EngineFault } from "../storage/store";
import type { Extent, Lease, PoolSpec, Request } from "../types";
import { count, extent, givenSpec, lease } from "./wire";

/**
 * Operations ask the run about leases of its stack (`StackPlan`), and for the child pool that follows from the chosen extents. A service
 * cannot call the run. It gets the answers that the run has with the request; if an attempt needs others, it is rolled back, the questions
 * are answered instead, and the run sends the request again with its answers. Most requests need none.
 */

const id = z.string().regex(/^[0-9a-f]{32}$/, "must be the id of a question");

export const question = z.discriminatedUnion("about", [
  z.object({ id, about: z.literal("release").describe("Does its resource release this lease in this run?"), lease }),
  z.object({ id, about: z.literal("abandoned").describe("Is this offer of an earlier run?"), lease }),
  z.object({
    id,
    about: z.literal("childPool").describe("Which child pool does a lease on these extents have?"),
    extents: z.array(extent),
    request: count.describe("The index of its request."),
  }),
]);
export type Question = z.output<typeof question>;

/** Questions of one answer. If more are open, the rest is asked next. */
export const MOST_QUESTIONS = 100;
/** How often a request is sent at most. */
export const MOST_ROUNDS = 50;

export const questions = z.strictObject({
  questions: z
    .array(question)
    .min(1)
    .max(MOST_QUESTIONS + 1),
});

export const answer = z.strictObject({ id, value: z.union([z.boolean(), givenSpec]) });
export type Answer = z.output<typeof answer>;
export const answers = z.array(answer).max(MOST_QUESTIONS * MOST_ROUNDS);

const digest = (...parts: unknown[]): string => hash("sha256", JSON.stringify(parts), "hex").slice(0, 32);

const extentsText = (extents: Extent[]): string[] => extents.map(extentCodec.encode);

/** What an answer about a lease depends on. */
const leaseQuestionId = (about: string, { pool, owner, leaseId, extents }: Lease): string =>
  digest(about, pool, owner, leaseId, extentsText(extents));

export const childPoolQuestionId = (request: number, extents: Extent[]): string =>
  digest("childPool", request, extentsText(extents));

/** Aborts an attempt that needs answers. */
export class OpenQuestions extends AttemptEnded {
  constructor(readonly questions: Question[]) {
    super("questions are open");
  }
}

/** The plan of a run in another process. */
export class RemotePlan implements StackPlan {
  readonly #answers: Map<string, Answer["value"]>;
  readonly #open = new Map<string, Question>();

  constructor(answers: Answer[]) {
    this.#answers = new Map(answers.map(({ id, value }) => [id, value]));
  }

  willRelease(lease: Lease): boolean {
    return this.#ask({ id: leaseQuestionId("release", lease), about: "release", lease }, true);
  }

  isAbandoned(lease: Lease): boolean {
    return this.#ask({ id: leaseQuestionId("abandoned", lease), about: "abandoned", lease }, false);
  }

  childPool(request: number, extents: Extent[]): PoolSpec {
    const id = childPoolQuestionId(request, extents);
    const known = this.#answers.get(id);
    if (typeof known === "object") return known;
    this.#open.set(id, { id, about: "childPool", extents, request });
    throw this.#openQuestions();
  }

  async attempt<T>(work: () => Promise<T>): Promise<T> {
    this.#open.clear();
    const outcome = await work().then(
      (value) => ({ value }),
      (error: unknown) => ({ error }),
    );
    if ("error" in outcome && outcome.error instanceof EngineFault) throw outcome.error;
    if (this.#open.size > 0) throw this.#openQuestions(); // The outcome follows from guesses.
    if ("error" in outcome) throw outcome.error;
    return outcome.value;
  }

  /** Without an answer, the attempt goes on with a guess, to find other questions. */
  #ask(question: Question, guess: boolean): boolean {
    const known = this.#answers.get(question.id);
    if (typeof known === "boolean") return known;
    this.#open.set(question.id, question);
    if (this.#open.size >= MOST_QUESTIONS) throw this.#openQuestions();
    return guess;
  }

  #openQuestions(): OpenQuestions {
    return new OpenQuestions([...this.#open.values()]);
  }
}

/** The answer of a run. */
export function answerQuestion(question: Question, plan: StackPlan, requests: Request[]): Answer["value"] {
  switch (question.about) {
    case "release":
      return plan.willRelease(question.lease);
    case "abandoned":
      return plan.isAbandoned(question.lease);
    case "childPool":
      return childPoolFor(requests[question.request], question.extents);
  }
}

function childPoolFor(request: Request | undefined, extents: Extent[]): PoolSpec {
  if (typeof request?.childPool === "function") return request.childPool(extents);
  throw new OverlayError(
    "STORE_UNAVAILABLE",
    "The service asks for the child pool of a request that has none.",
    "Set overlay:store to the URL of `overlayctl serve`.",
  );
}

/** Answers to questions that a request will lead to: its child pool, for the extents that it may get. */
export function predictAnswers(request: Request, index: number, expected: Extent[]): [id: string, Answer][] {
  const { childPool, want, prefer } = request;
  if (typeof childPool !== "function") return [];
  const likely = [want, prefer, expected].filter((extents) => extents !== undefined && extents.length > 0);
  return (want ? [want] : likely).map((extents) => {
    const id = childPoolQuestionId(index, extents!);
    return [id, { id, value: childPool(extents!) }];
  });
}
