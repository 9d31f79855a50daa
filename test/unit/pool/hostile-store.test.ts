import { expect, test } from "vitest";
import {
  allocationCodec,
  type Codec,
  countsCodec,
  decodeRow,
  deletedPoolCodec,
  epochCodec,
  eventCodec,
  extentCodec,
  headCodec,
  idsCodec,
  leaseCodec,
  leaseRefCodec,
  poolCodec,
  uidCodec,
  wordCodec,
} from "../../../provider/pool/storage/records";
import type { Row } from "../../../provider/pool/storage/store";
import { snapshot } from "../../../provider/pool/storage/transfer";
import { by, createPool, extents } from "../../contract/fixture";
import { createRowFixture, memoryRowEngine, type RowFixture } from "../../contract/rows/fixture";

/** A store that other programs write to. Every text in every row is replaced by one that a shell would run. */
const engine = memoryRowEngine();

/** By prefix of the key; the longest prefix counts. */
const CODECS: [prefix: string, codec: Codec<unknown>][] = [
  ["v/head", headCodec],
  ["v/epoch/", epochCodec],
  ["v/recovered", idsCodec],
  ["k/identity", wordCodec],
  ["p/", poolCodec],
  ["l/", leaseCodec],
  ["a/", allocationCodec],
  ["f/", extentCodec],
  ["g/", extentCodec],
  ["o/", uidCodec],
  ["x/", uidCodec],
  ["s/", uidCodec],
  ["q/", uidCodec],
  ["w/", uidCodec],
  ["u/", leaseRefCodec],
  ["c/", countsCodec],
  ["h/", eventCodec],
  ["d/", deletedPoolCodec],
] as [string, Codec<unknown>][];

/** One row at least under each of the keys. */
async function createBusyStore(): Promise<RowFixture> {
  const made = await createRowFixture(engine, { actor: "ops@controller", quarantine: 300 });
  const { pool, pass } = made;
  await createPool(pool, {
    extents: extents("10.0.0.0/24"),
    reserved: extents("10.0.0.0"),
    staticOnly: extents("10.0.0.9"),
    tenant: { org: "acme", project: "web" },
    data: { settings: { poolName: "p" } },
  });
  const tenant = { org: "acme", project: "web" };
  const ask = (owner: string, more = {}) => by(owner, { tenant, ...more });
  await pool.claim(ask("a", { names: ["user/a"], ttl: 60, labels: { team: "x" }, data: { run: "r", name: "n" } }));
  await pool.claim(ask("b", { sharingKey: "k", ports: [{ protocol: "tcp", port: 80 }] }));
  await pool.claim(ask("u", { usedBy: "job" }));
  await pool.offer(ask("c"));
  const released = await pool.claim(ask("d", { want: extents("10.0.0.77") }));
  await pool.release("pool/p", released.leaseId);
  await pool.offer(ask("e", { want: extents("10.0.0.77") })).catch(() => {});
  await pool.amend("pool/p", (await pool.claim(ask("m"))).leaseId, { owner: "n" });
  const gone = await createPool(pool, { name: "pool/gone", extents: extents("10.9.0.0/24") });
  await pool.release("space/address", gone.leaseId);
  await pool.identity();
  pass(5);
  await pool.claim(ask("z"));
  await pool.adoptIdentity(["other"], 1);
  pass(5);
  await pool.claim(ask("y"));
  pass(5);
  await pool.claim(ask("w"));
  return made;
}

/** Free text: it is shown escaped, and is never part of a command. Only control characters are refused in it. */
const FREE =
  /(^|\.)(owner|formerOwner|by|usedBy|takenBy|sharingKey|sharedAs|labels\..*|names\.\d+|org|project|data\..*)$/;

/** Every text in a row, as a path and the row with another text in its place. */
function* replacements(value: unknown, text: string, path: string[] = []): Generator<[path: string, row: unknown]> {
  if (typeof value === "string") yield [path.join("."), text];
  if (typeof value !== "object" || value === null) return;
  for (const [key, inner] of Object.entries(value))
    for (const [where, changed] of replacements(inner, text, [...path, key]))
      yield [where, Array.isArray(value) ? value.with(Number(key), changed) : { ...value, [key]: changed }];
}

const HOSTILE = [
  "$(touch /tmp/x)",
  "`id`",
  "a;reboot",
  "a'b",
  'a"b',
  "a b",
  "a|b",
  "a&b",
  "a>b",
  "--x\n",
  "a\u001b[2J",
  "",
];
const PRINTABLE = HOSTILE.filter((text) => !/\p{Cc}/u.test(text));

const codecOf = (key: string): Codec<unknown> | undefined => CODECS.find(([prefix]) => key.startsWith(prefix))?.[1];
const isJson = (text: string): boolean => /^[{[]/.test(text);
const refusal = (codec: Codec<unknown>, [key, text]: Row): string => {
  try {
    decodeRow(codec, key, text);
    return "";
  } catch (error) {
    return (error as Error).message;
  }
};

test("every text of every row that could be more than a word is refused on reading, and the row is named", async () => {
  const rows: Row[] = [
    ...(await snapshot((await createBusyStore()).store)),
    ["d/000000000001/pool%2Fgone", deletedPoolCodec.encode({ pool: "pool/gone", at: 1 })],
    ["w/pool%2Fp/1a2b", "3c4d"],
  ];
  const seen = new Set<string>();
  let tried = 0;
  for (const [key, text] of rows) {
    const codec = codecOf(key);
    if (!codec) continue;
    seen.add(CODECS.find(([prefix]) => key.startsWith(prefix))![0]);
    expect(refusal(codec, [key, text]), `${key} as it is`).toBe("");
    for (const hostile of HOSTILE) {
      const changed: [string, string][] = isJson(text)
        ? [...replacements(JSON.parse(text), hostile)].map(([path, row]) => [path, JSON.stringify(row)])
        : [["", hostile]];
      for (const [path, row] of changed) {
        if (FREE.test(path) && PRINTABLE.includes(hostile)) continue;
        // The epoch of what was recovered has no id.
        if (path === "id" && hostile === "" && key.startsWith("v/")) continue;
        expect(refusal(codec, [key, row]), `${key} ${path} ${JSON.stringify(hostile)}`).toMatch(
          new RegExp(`^STORE_CORRUPT: Row ${key.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")} `),
        );
        tried++;
      }
    }
  }
  expect([...seen].sort()).toEqual(CODECS.map(([prefix]) => prefix).sort());
  expect(tried).toBeGreaterThan(1000);
});

test.each([
  ["no JSON", "x"],
  ["a list", "[]"],
  ["null", "null"],
  ["an empty object", "{}"],
  ["a prototype", '{"__proto__":{"owner":"x"}}'],
])("a lease that is %s is refused", (_, text) => {
  expect(refusal(leaseCodec as Codec<unknown>, ["l/p/u", text])).toMatch(/^STORE_CORRUPT: Row l\/p\/u /);
});

test("a field that only a newer release knows is kept, and must be plain", async () => {
  const [[key, text] = ["", "{}"]] = (await snapshot((await createBusyStore()).store)).filter(([key]) =>
    key.startsWith("l/"),
  );
  const withField = (value: unknown) => JSON.stringify({ ...JSON.parse(text), later: value });
  expect(leaseCodec.decode(withField({ a: ["b"] }))).toMatchObject({ later: { a: ["b"] } });
  expect(refusal(leaseCodec as Codec<unknown>, [key, withField("a\u001b[2J")])).toMatch(/field later/);
});

test("the pool names a damaged lease, and other pools still work", async () => {
  const { pool, store } = await createBusyStore();
  const [[key, text] = ["", ""]] = (await snapshot(store)).filter(([key]) => key.startsWith("l/pool%2Fp/"));
  await store.transact(async (tx) => {
    await tx.write([[key, JSON.stringify({ ...JSON.parse(text), uid: "../../etc" })]]);
  });
  await expect(pool.leases("pool/p")).rejects.toThrow(
    `STORE_CORRUPT: Row ${key} of the store is not valid (field uid)`,
  );
  await createPool(pool, { name: "pool/q", extents: extents("10.8.0.0/24") });
  await pool.claim({ pool: "pool/q", owner: "q", type: "T" });
});

test("text that could not be decoded again is not written", async () => {
  const { pool } = await createBusyStore();
  await createPool(pool, { name: "pool/q", extents: extents("10.8.0.0/24") });
  await expect(pool.claim({ pool: "pool/q", owner: "a\u001bb", type: "T" })).rejects.toThrow(
    /^INPUT_INVALID: The owner /,
  );
  expect(await pool.leases("pool/q")).toEqual([]);
});
