import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { z } from "zod";
import { ensureFuzzEngine } from "../../setup/fuzz-engine.mjs";

/** The process of fuzz/engine. It runs programs with Pulumi's deployment engine, and calls for what the SDK and the provider do. */

const values = z.record(z.string(), z.unknown());

const resourceSchema = z.object({
  urn: z.string(),
  delete: z.boolean(),
  pendingReplacement: z.boolean(),
  inputs: values,
  outputs: values,
});
export type EngineResource = z.output<typeof resourceSchema>;

const resultSchema = z.object({
  done: z.number(),
  steps: z.array(z.object({ op: z.string(), urn: z.string(), inputs: values.optional() })).default([]),
  /** What Pulumi reports to the user. */
  text: z.string().default(""),
  error: z.string().optional(),
  /** The engine itself failed, or wrote a state that it cannot read. */
  broken: z.string().optional(),
  /** The state after an up or a destroy. */
  resources: z.array(resourceSchema).optional(),
});
export type EngineResult = z.output<typeof resultSchema>;

const callSchema = z.object({ call: z.number(), run: z.number(), method: z.string(), args: values });
export type EngineCall = Pick<z.output<typeof callSchema>, "method" | "args">;

/** An error may have a value: the state that is kept. */
export interface EngineAnswer {
  value?: unknown;
  error?: string;
}

/** A resource of a program. Its inputs are asked for when those that they depend on are registered. */
export interface EngineDeclaration {
  type: string;
  name: string;
  aliases: string[];
  dependsOn: string[];
  component: string;
  /** By input: names of the resources that it refers to. */
  propertyDeps: Record<string, string[]>;
}

type Answer = (call: EngineCall) => Promise<EngineAnswer>;

export class EngineProcess {
  readonly #process: ChildProcess;
  readonly #runs = new Map<number, { answer: Answer; finish: (result: EngineResult) => void }>();
  #last = 0;

  static async start(): Promise<EngineProcess> {
    return new EngineProcess(await ensureFuzzEngine());
  }

  private constructor(program: string) {
    this.#process = spawn(program, [], { stdio: ["pipe", "pipe", "inherit"] });
    createInterface({ input: this.#process.stdout! }).on("line", (line) => this.#receive(JSON.parse(line)));
  }

  run(op: string, stack: string, program: EngineDeclaration[], answer: Answer): Promise<EngineResult> {
    const id = ++this.#last;
    return new Promise((finish) => {
      this.#runs.set(id, { answer, finish });
      this.#send({ id, op, stack, program });
    });
  }

  stop(): void {
    this.#process.stdin!.end();
  }

  #send(message: object): void {
    this.#process.stdin!.write(`${JSON.stringify(message)}\n`);
  }

  #receive(message: object): void {
    if ("done" in message) {
      const result = resultSchema.parse(message);
      this.#runs.get(result.done)!.finish(result);
      this.#runs.delete(result.done);
      return;
    }
    const { call: id, run, ...call } = callSchema.parse(message);
    const ended: Answer = async () => ({ error: "the run has ended" });
    const { answer = ended } = this.#runs.get(run) ?? {};
    answer(call).then((answered) => this.#send({ id, answer: true, ...answered }));
  }
}
