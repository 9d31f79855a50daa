import { expect, test } from "vitest";
import { SECRETS } from "../../../provider/pool/storage/secrets";
import { get, put, type Remote } from "./remote";

export function secretContract(remote: Remote): void {
  test("secrets are stored apart from other rows, and are not in the log", async () => {
    const key = `${SECRETS.from}ring`;
    const url = remote.newUrl();
    const [store, other] = [await remote.open(url), await remote.open(url)];
    for (const value of ["swordfish", "swordfish again"]) {
      await store.transact(async (tx) => {
        await tx.write([
          [key, value],
          ["plain", `not a secret, beside ${value.length} characters`],
        ]);
      });
      expect([await other.transact(get(key)), await other.read(get(key))]).toEqual([value, value]);
    }
    const dump = await remote.dumpWithoutSecrets(url);
    expect(dump).toContain("not a secret, beside 15 characters");
    expect(dump).not.toContain("swordfish");
    await store.transact(put(key, null));
    expect([await other.transact(get(key)), await other.read(get(key))]).toEqual([undefined, undefined]);
  });
}
