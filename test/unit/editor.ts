import { join } from "node:path";
import ts from "typescript";

/** What an editor shows for a program: TypeScript's language service answers completion and hover. */
const ROOT = join(__dirname, "../..");
const FILE = join(ROOT, "test/unit/program.ts");
const IMPORTS = `import * as pulumi from "@pulumi/pulumi";\nimport * as overlay from "../../sdk";\n`;

export class Editor {
  #text = "";
  #version = 0;
  readonly #service: ts.LanguageService;

  constructor() {
    const { config } = ts.readConfigFile(join(ROOT, "tsconfig.json"), ts.sys.readFile);
    const { options } = ts.parseJsonConfigFileContent({ ...config, include: [], files: [] }, ts.sys, ROOT);
    this.#service = ts.createLanguageService({
      getCompilationSettings: () => ({ ...options, noEmit: true, incremental: false, noUnusedLocals: false }),
      getScriptFileNames: () => [FILE],
      getScriptVersion: (file) => (file === FILE ? String(this.#version) : "0"),
      getScriptSnapshot: (file) => {
        const text = file === FILE ? this.#text : ts.sys.readFile(file);
        return text === undefined ? undefined : ts.ScriptSnapshot.fromString(text);
      },
      getCurrentDirectory: () => ROOT,
      getDefaultLibFileName: (given) => ts.getDefaultLibFilePath(given),
      fileExists: (file) => file === FILE || ts.sys.fileExists(file),
      readFile: (file) => (file === FILE ? this.#text : ts.sys.readFile(file)),
      directoryExists: ts.sys.directoryExists,
    });
  }

  /** Shows this program; `|` is the cursor, whose position it returns. */
  open(program: string): number {
    const at = program.indexOf("|");
    this.#text = IMPORTS + program.replace("|", "");
    this.#version++;
    return IMPORTS.length + at;
  }

  completions(program: string): string[] {
    const at = this.open(program);
    return this.#service.getCompletionsAtPosition(FILE, at, {})?.entries.map(({ name }) => name) ?? [];
  }

  hover(program: string): string {
    const info = this.#service.getQuickInfoAtPosition(FILE, this.open(program));
    const tags = info?.tags?.map(({ name, text }) => `@${name} ${ts.displayPartsToString(text)}`) ?? [];
    return [ts.displayPartsToString(info?.documentation), ...tags].join("\n");
  }

  errors(program: string): string[] {
    this.open(program);
    const all = [...this.#service.getSyntacticDiagnostics(FILE), ...this.#service.getSemanticDiagnostics(FILE)];
    return all.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, " "));
  }
}
