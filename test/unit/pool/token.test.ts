import fc from "fast-check";
import { beforeEach, expect, test, vi } from "vitest";
import { keyRing, newSecret, openToken, signToken } from "../../../provider/ipam/token";
import type { TokenClaims } from "../../../provider/ipam/types";
import { openPool } from "../../contract/fixture";

const compared = vi.hoisted(() => [] as [number, number][]);

vi.mock("node:crypto", async (original) => {
  const crypto = await original<typeof import("node:crypto")>();
  const timingSafeEqual = (a: Buffer, b: Buffer): boolean => {
    compared.push([a.length, b.length]);
    return crypto.timingSafeEqual(a, b);
  };
  return { ...crypto, timingSafeEqual };
});

const grant: TokenClaims = {
  pool: "runner/training/node1",
  value: 0xffff_0a80_4005n,
  runner: "training/node1",
  owner: "overlayctl/training/node1/web",
  leaseId: "0123456789abcdef.fedcba9876543210",
  expiresAt: Date.UTC(2030, 0, 1),
};
const ring = keyRing("a secret of some length");
const token = signToken(grant, ring);

const codeOf = (act: () => unknown): string => {
  try {
    return `accepted: ${JSON.stringify(act(), (_, value) => (typeof value === "bigint" ? String(value) : value))}`;
  } catch (error) {
    return (error as { code?: string }).code ?? String(error);
  }
};

beforeEach(() => {
  compared.length = 0;
});

test("a token has four parts, names its lease, and is verified by the key ring that signed it", () => {
  expect(token).toMatch(/^ipr1\.[\w-]{8}\.[\w-]+\.[\w-]{43}$/);
  expect(JSON.parse(Buffer.from(token.split(".")[2]!, "base64url").toString())).toEqual({
    pool: "runner/training/node1",
    value: "281470857920517",
    runner: "training/node1",
    owner: "overlayctl/training/node1/web",
    leaseId: "0123456789abcdef.fedcba9876543210",
    exp: 1893456000,
  });
  expect(openToken(token, ring, { runner: "training/node1", now: grant.expiresAt! })).toEqual(grant);
});

test("a signed grant is read back unchanged, also without an expiry", () => {
  const texts = {
    pool: fc.string(),
    runner: fc.string(),
    owner: fc.string({ unit: "grapheme" }),
    leaseId: fc.string(),
  };
  const grants = fc.record({ ...texts, value: fc.bigInt({ min: 0n, max: (1n << 128n) - 1n }) });
  const opensAsItWas = fc.property(grants, (any) => {
    expect(openToken(signToken(any, ring), ring)).toEqual(any);
  });
  fc.assert(opensAsItWas);
});

test.each([
  ["cut at its end", token.slice(0, -1), "TOKEN_FORMAT"],
  ["cut at its start", token.slice(1), "TOKEN_FORMAT"],
  ["without its signature", token.slice(0, token.lastIndexOf(".")), "TOKEN_FORMAT"],
  ["extended by a character", `${token}A`, "TOKEN_FORMAT"],
  ["extended by a part", `${token}.AAAA`, "TOKEN_FORMAT"],
  ["with a line break", `${token}\n`, "TOKEN_FORMAT"],
  ["padded", `${token}=`, "TOKEN_FORMAT"],
  ["empty", "", "TOKEN_FORMAT"],
  ["of another version", token.replace("ipr1", "ipr2"), "TOKEN_FORMAT"],
  ["too long to be one", `ipr1.AAAAAAAA.${"A".repeat(5000)}.${"A".repeat(43)}`, "TOKEN_FORMAT"],
  ["forged", token.replace(/.{43}$/, "A".repeat(43)), "TOKEN_SIGNATURE"],
  ["signed with another key", signToken(grant, keyRing("another secret of ours")), "TOKEN_SIGNATURE"],
  ["of another key's id", token.replace(/\.[\w-]{8}\./, ".AAAAAAAA."), "TOKEN_SIGNATURE"],
  ["of another payload", token.replace(/(ipr1\.[^.]+)\.[^.]+/, "$1.e30"), "TOKEN_SIGNATURE"],
])("a token %s is refused", (_, text, code) => {
  expect(codeOf(() => openToken(text, ring))).toBe(code);
});

test("a token for another runner, or an expired one, is refused", () => {
  for (const runner of ["training/node2", "node2", "ode1", "training"]) {
    expect(codeOf(() => openToken(token, ring, { runner }))).toBe("TOKEN_RUNNER");
  }
  expect(openToken(token, ring, { runner: "node1" })).toEqual(grant);
  expect(codeOf(() => openToken(token, ring, { runner: "other/node1" }))).toBe("TOKEN_RUNNER");
  const ofPool = signToken({ ...grant, pool: "pool/node1", runner: "pool/node1" }, ring);
  expect(codeOf(() => openToken(ofPool, ring, { runner: "node1" }))).toBe("TOKEN_RUNNER");
  expect(codeOf(() => openToken(token, ring, { now: grant.expiresAt! + 1 }))).toBe("TOKEN_EXPIRED");
});

test("a token with one character changed, removed or inserted is refused", { timeout: 60_000 }, () => {
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.+/= ";
  const answers = new Set<string>();
  for (let i = 0; i < token.length; i++) {
    const [before, after] = [token.slice(0, i), token.slice(i + 1)];
    const others = ["", ...letters].map((letter) => before + letter + after);
    others.push(`${before}A${token.slice(i)}`);
    for (const other of others) if (other !== token) answers.add(codeOf(() => openToken(other, ring)));
  }
  expect(answers).toEqual(new Set(["TOKEN_FORMAT", "TOKEN_SIGNATURE"]));
});

test("signatures are compared whole and in constant time, wherever they differ, and before anything is parsed", () => {
  const parse = vi.spyOn(JSON, "parse");
  const start = token.length - 43;
  for (let i = start; i < token.length; i++) {
    const other = token[i] === "A" ? "B" : "A";
    expect(codeOf(() => openToken(token.slice(0, i) + other + token.slice(i + 1), ring))).toBe("TOKEN_SIGNATURE");
  }
  expect(compared).toEqual(Array.from({ length: 43 }, () => [43, 43]));
  expect(parse).not.toHaveBeenCalled();
  parse.mockRestore();
});

test("keys rotate: the first signs, all verify, and removed keys do not verify", () => {
  const [old, next] = [newSecret(), newSecret()];
  const before = signToken(grant, keyRing(old));
  const after = signToken(grant, keyRing(`${next}, ${old}`));
  expect(openToken(before, keyRing(`${next},${old}`))).toEqual(grant);
  expect(openToken(after, keyRing(next))).toEqual(grant);
  expect(codeOf(() => openToken(before, keyRing(next)))).toBe("TOKEN_SIGNATURE");
});

test("neither a token nor an error holds the key, and short keys are refused", () => {
  expect(Buffer.from(token.replaceAll(".", ""), "base64url").includes("a secret of some length")).toBe(false);
  expect(() => keyRing("a secret of some length,hunter2")).toThrow(/^SETTING_INVALID: Setting tokenKeys: key 2 of 2/);
  expect(() => keyRing("a secret of some length,hunter2")).not.toThrow(/hunter2/);
  expect(codeOf(() => keyRing(""))).toBe("SETTING_INVALID");
});

test("a pool is not opened with short keys", async () => {
  const open = openPool("memory:", { offerTtl: 60, quarantine: 0, tokenKeys: "" });
  await expect(open).rejects.toThrow(/^SETTING_INVALID: Setting tokenKeys/);
});
