import { openEngine } from "../../provider/ipam";
import { snapshot } from "../../provider/ipam/transfer";

/** All rows of a store as text, sorted, and before them its head without what a move changes. */
export async function rowsAt(url: string, settings: { clock?: () => number } = {}): Promise<string[]> {
  const engine = await openEngine(url, settings);
  const [heads, rows]: string[][] = [[], []];
  try {
    for await (const found of snapshot(engine)) {
      if ("head" in found) heads!.push(textOf({ ...found.head, at: 0, move: undefined }));
      else rows!.push(...found.rows.map((row) => `${found.table} ${textOf(row)}`));
    }
    return [...heads!, ...rows!.sort()];
  } finally {
    await engine.close();
  }
}

const textOf = (thing: object): string =>
  JSON.stringify(thing, (_, value) => (typeof value === "bigint" ? `${value}n` : value));
