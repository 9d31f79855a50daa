/** The known name that is most similar; undefined if none is similar. */
export function nearestName(given: string, known: string[]): string | undefined {
  const limit = Math.min(3, Math.ceil(given.length / 3));
  const candidates = known
    .filter((name) => Math.abs(name.length - given.length) <= limit)
    .map((name) => ({ name, distance: editDistance(given.toLowerCase(), name.toLowerCase()) }))
    .filter(({ distance }) => distance <= limit);
  return candidates.sort((a, b) => a.distance - b.distance)[0]?.name;
}

/** Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
export function editDistance(a: string, b: string): number {
  let [before, row]: number[][] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1;
      next[j] = Math.min(row![j]! + 1, next[j - 1]! + 1, row![j - 1]! + cost);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) next[j] = Math.min(next[j]!, before![j - 2]! + 1);
    }
    [before, row] = [row, next];
  }
  return row![b.length]!;
}
