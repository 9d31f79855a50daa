/** Something that lies in a pool and may open another one: a lease, or what is to become one. */
export interface Nested {
  pool: string;
  opens?: string | { name: string };
}

/** In an order in which every pool is there before anything lies in it; otherwise as they were. */
export function openersFirst<T extends Nested>(all: T[]): T[] {
  const openers = new Map(all.flatMap((each): [string, T][] => (each.opens ? [[nameOf(each.opens), each]] : [])));
  const depth = ({ pool }: Nested): number => {
    const opener = openers.get(pool);
    return opener ? 1 + depth(opener) : 0;
  };
  const depths = new Map(all.map((each) => [each, depth(each)]));
  return [...all].sort((a, b) => depths.get(a)! - depths.get(b)!);
}

const nameOf = (opens: string | { name: string }): string => (typeof opens === "string" ? opens : opens.name);
