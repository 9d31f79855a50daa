/**
 * The rules of the pool are generators that yield whatever the engine answered: a value on SQLite and in memory, a
 * promise elsewhere. So each rule is written once. An `await` between BEGIN and COMMIT would hold SQLite's lock over the
 * event loop and let a second transaction of this process join in; driven at once, that cannot happen.
 */
export type Rule<T> = Generator<unknown, T, unknown>;

export type Maybe<T> = T | Promise<T>;

export function driven<T>(rule: Rule<T>): T {
  let step = rule.next();
  while (!step.done) step = rule.next(step.value);
  return step.value;
}

/** For engines that answer later. A failed answer is thrown where it was asked for. */
export async function awaited<T>(rule: Rule<T>): Promise<T> {
  let step = rule.next();
  while (!step.done) {
    try {
      const answer = await step.value;
      step = rule.next(answer);
    } catch (error) {
      step = rule.throw(error);
    }
  }
  return step.value;
}
