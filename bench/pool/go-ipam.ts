import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { cacheFolder } from "../../setup/tools.mjs";
import { type Answer, answersOf, type Claimer } from "./claimers";

const SOURCE = join(__dirname, "../go-ipam");

/** Compiles the program around go-ipam, once for each version of its source. undefined if that fails, with a message. */
export async function buildGoIpam(): Promise<string | undefined> {
  const hash = createHash("sha256");
  for (const file of ["main.go", "go.mod", "go.sum"]) hash.update(readFileSync(join(SOURCE, file)));
  const program = join(cacheFolder(), `go-ipam-${hash.digest("hex").slice(0, 16)}`);
  if (existsSync(program)) return program;
  console.error("Compiling go-ipam from the Go registry; the first time this takes some minutes.");
  mkdirSync(cacheFolder(), { recursive: true });
  try {
    await promisify(execFile)("go", ["build", "-o", program, "."], { cwd: SOURCE, timeout: 600_000 });
    return program;
  } catch (error) {
    console.error(`go-ipam is left out: ${(error as Error).message.trim()}`);
    return undefined;
  }
}

export interface GoIpamOptions {
  storage: "memory" | "postgres" | "etcd";
  host?: string;
  port?: string;
  fill?: Record<string, number>;
}

export const goIpamOptionsAt = (storage: "postgres" | "etcd", port: number): GoIpamOptions => ({
  storage,
  host: "127.0.0.1",
  port: String(port),
});

export async function startGoIpam(program: string, opening: GoIpamOptions): Promise<Claimer> {
  const child = spawn(program, { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout });
  const answers = answersOf<string>(child, "go-ipam", (onAnswer) => lines.on("line", onAnswer));
  const send = async (what: object): Promise<Answer> => {
    child.stdin.write(`${JSON.stringify(what)}\n`);
    return JSON.parse(await answers.next());
  };
  await send(opening);
  return { send, stop: () => child.stdin.end() };
}
