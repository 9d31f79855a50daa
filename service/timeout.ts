/** Rejects with the error if the work takes longer. The work itself goes on. */
export async function withTimeout<T>(work: Promise<T>, ms: number, toError: () => Error): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(toError()), ms);
  });
  return Promise.race([work, timeout]).finally(() => clearTimeout(timer));
}
