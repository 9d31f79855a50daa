import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";

/** The instructions of a Dockerfile that make files, followed without Docker: each stage gets a folder instead of an image. */

interface Instruction {
  name: string;
  text: string;
}

const readInstructions = (file: string): Instruction[] =>
  readFileSync(file, "utf8")
    .replace(/^#.*\n/gm, "")
    .replace(/\\\n\s*/g, "")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => ({ name: line.split(" ")[0]!, text: line.slice(line.indexOf(" ") + 1) }));

/** The image that was built: a folder, and how its program is started. */
export interface Image {
  folder: string;
  /** Paths of the image that commands name, as they are here. */
  translate(text: string): string;
  env: Record<string, string>;
  command: string[];
  healthCheck: string[];
}

/** Where the instructions write. Other absolute paths are those of this machine. */
const OWN_PATHS = /(^|[\s=:"])(\/(?:build|opt|usr\/local\/bin|var\/lib)\b)/g;

const newImage = (folder: string): Image => ({
  folder,
  translate: (text) => text.replace(OWN_PATHS, (_, before, path) => `${before}${folder}${path}`),
  env: {},
  command: [],
  healthCheck: [],
});

/** Follows the Dockerfile with the files of `context`. Returns the last stage. */
export function buildImage(file: string, context: string, folder: string): Image {
  const stages = new Map<string, Image>();
  let image = newImage(folder);
  let workdir = "/";
  for (const { name, text } of readInstructions(file)) {
    const here = () => join(image.folder, workdir);
    if (name === "FROM") {
      const stage = / AS (\w+)$/.exec(text)?.[1] ?? "last";
      image = newImage(join(folder, stage));
      for (const path of ["usr/local/bin", "var/lib"]) mkdirSync(join(image.folder, path), { recursive: true });
      stages.set(stage, image);
    } else if (name === "WORKDIR") {
      workdir = text;
      mkdirSync(here(), { recursive: true });
    } else if (name === "COPY") copyFiles(text, context, stages, here());
    else if (name === "RUN") runCommand(image, text, here());
    else if (name === "ENV") Object.assign(image.env, readPairs(text));
    else if (name === "ENTRYPOINT" || name === "CMD") image.command.push(...JSON.parse(text));
    else if (name === "HEALTHCHECK") image.healthCheck = JSON.parse(/ CMD (.*)$/.exec(text)![1]!);
    else if (!["USER", "VOLUME", "EXPOSE"].includes(name)) throw new Error(`Unknown instruction ${name} ${text}.`);
  }
  return image;
}

/** As `COPY`: of a folder its content, of a file the file itself. */
function copyFiles(text: string, context: string, stages: Map<string, Image>, workdir: string): void {
  const words = text.split(" ");
  const from = words[0]!.startsWith("--from=") ? stages.get(words.shift()!.slice("--from=".length))! : undefined;
  const target = resolve(workdir, words.pop()!);
  for (const word of words) {
    const source = from ? join(from.folder, word) : join(context, word);
    const isFolder = statSync(source).isDirectory();
    const to = isFolder ? target : join(target, basename(source));
    cpSync(source, to, { recursive: true, verbatimSymlinks: true });
  }
}

/** As the user of this process instead of the image's. */
function runCommand(image: Image, text: string, cwd: string): void {
  const own = text.replace(/--owner=\d+ --group=\d+ /, "");
  execFileSync("/bin/sh", ["-euc", image.translate(own)], { cwd, stdio: ["ignore", "ignore", "inherit"] });
}

const readPairs = (text: string): Record<string, string> =>
  Object.fromEntries(text.split(" ").map((pair) => [pair.split("=")[0]!, pair.split("=").slice(1).join("=")]));
