import { expect, test } from "vitest";
import type { Row, Write } from "../../../provider/pool/storage/store";
import { by, createPool, extents } from "../../contract/fixture";
import { createRowFixture, memoryRowEngine, type RowFixture } from "../../contract/rows/fixture";

const engine = memoryRowEngine();

async function createBusyFixture(): Promise<RowFixture> {
  const made = await createRowFixture(engine);
  const { pool } = made;
  await createPool(pool, {
    extents: extents("10.0.0.0/24"),
    reserved: extents("10.0.0.0"),
    staticOnly: extents("10.0.0.9"),
  });
  await pool.claim(by("a", { names: ["user/a"], ttl: 60 }));
  await pool.claim(by("b", { sharingKey: "k", ports: [{ protocol: "tcp", port: 80 }] }));
  await pool.offer(by("c"));
  await pool.release("pool/p", (await pool.claim(by("d"))).leaseId);
  await pool.amend("pool/p", (await pool.claim(by("e"))).leaseId, { owner: "f" });
  return made;
}

const rows = ({ store }: RowFixture): Promise<Row[]> => store.read(async (tx) => await tx.range("", "~", 1000));

const damage = ({ store }: RowFixture, ...writes: Write[]) =>
  store.transact(async (tx) => {
    await tx.write(writes);
  });

test("every derived row that is missing, wrong or superfluous is found and repaired", async () => {
  const made = await createBusyFixture();
  const before = await rows(made);
  expect(await made.pool.fsck()).toEqual([]);
  const derived = before.filter(([key]) => /^[afgoxsquc]\//.test(key));
  expect(new Set(derived.map(([key]) => key[0]))).toEqual(new Set("afgoxsquc"));
  for (const [key, value] of derived) {
    await damage(made, [key, null]);
    const findings = await made.pool.fsck({ repair: true });
    expect(findings.length, key).toBeGreaterThan(0);
    expect(findings.every(({ repairable }) => repairable)).toBe(true);
    expect(await made.pool.fsck()).toEqual([]);
    if (!key.startsWith("c/")) expect((await rows(made)).find(([other]) => other === key)).toEqual([key, value]);
  }
  await damage(made, ["o/pool%2Fp/ghost/1234", "1234"], ["u/user%2Fghost", '{"pool":"pool/p","uid":"1"}']);
  expect(await made.pool.fsck({ repair: true })).toEqual([
    { pool: "pool/p", problem: "o/pool%2Fp/ghost/1234 should not be there", repairable: true },
    { pool: "", problem: "u/user%2Fghost should not be there", repairable: true },
  ]);
  expect(await made.pool.fsck()).toEqual([]);
});

test("two leases on one value are reported, and nothing is repaired", async () => {
  const made = await createBusyFixture();
  const [key, text] = (await rows(made)).find(
    ([key, value]) => key.startsWith("l/pool") && value.includes('"owner":"a"'),
  )!;
  const uid = JSON.parse(text).uid as string;
  const twin = text
    .replaceAll(uid, "0123456789abcdef")
    .replace('"owner":"a"', '"owner":"twin"')
    .replace("user/a", "user/twin");
  await damage(made, [key.replace(uid, "0123456789abcdef"), twin]);
  const before = await rows(made);
  const [finding] = await made.pool.fsck({ repair: true });
  expect(finding).toMatchObject({ pool: "pool/p", repairable: false });
  expect(finding!.problem).toMatch(/^10\.0\.0\.1 is held by (a|twin) \(.*\) and by (a|twin) \(.*\)$/);
  expect((await rows(made)).filter(([key]) => key.startsWith("a/"))).toEqual(
    before.filter(([key]) => key.startsWith("a/")),
  );
});

test("rows of a pool that is not there are removed, unless there is a lease among them", async () => {
  const made = await createBusyFixture();
  const before = await rows(made);
  await damage(made, ["f/pool%2Fgone/00ff", "1-ff"], ["c/pool%2Fgone", "{}"], ["o/pool%2Fq/x/1", "1"]);
  expect((await made.pool.fsck({ repair: true })).map(({ pool, repairable }) => [pool, repairable])).toEqual([
    ["pool/gone", true],
    ["pool/q", true],
  ]);
  const uncounted = (all: Row[]) => all.filter(([key]) => key !== "v/head");
  expect(uncounted(await rows(made))).toEqual(uncounted(before));
  await damage(made, ["p/pool%2Fp", null]);
  expect((await made.pool.fsck({ repair: true })).filter(({ pool }) => pool === "pool/p")).toMatchObject([
    { problem: expect.stringMatching(/^the pool is gone, but .* has a lease in it$/), repairable: false },
  ]);
});

test("a child pool without its lease, and leases outside their pool, are reported and not repaired", async () => {
  const made = await createBusyFixture();
  const before = await rows(made);
  const opener = before.find(([key]) => key.startsWith("l/space"))!;
  const [key, spec] = before.find(([key]) => key === "p/pool%2Fp")!;
  await damage(
    made,
    [opener[0], null],
    [key, spec.replace(/"extents":\["[^"]*"\]/, '"extents":["ffff0a000001-ffff0a000002"]')],
  );
  const problems = (await made.pool.fsck()).filter(({ repairable }) => !repairable).map(({ problem }) => problem);
  expect(problems).toContain("the lease that opened it is gone");
  expect(problems).toContainEqual(expect.stringMatching(/^10\.0\.0\.3 of c \(.*\) is outside the pool$/));
});
