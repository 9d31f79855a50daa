import type { EngineProcess, EngineResource } from "./engine-process";
import type { Program } from "./program";
import { type EngineGround, ProviderRun } from "./provider-run";
import type { StackUnderTest } from "./session";
import { DYNAMIC_TYPE, type Ended, type Kill, planOf, type Shown, type StateEntry, stateOf } from "./stack";

/**
 * A stack that Pulumi's engine runs, with the lifecycles in this process. It is much faster than the CLI, and leaves out: the CLI, the SDK,
 * the state file, processes, and hosts. The engine runs the same steps, in an order that is more random.
 */
export class EngineStack implements StackUnderTest {
  #program: Program = [];
  #resources: EngineResource[] = [];

  constructor(
    private readonly engine: EngineProcess,
    /** Unique, because the engine keeps the states of all sessions. */
    private readonly session: string,
    private readonly ground: EngineGround & { pass(milliseconds: number): void },
    readonly name: string,
  ) {}

  async init(): Promise<void> {}

  declare(program: Program): void {
    this.#program = program;
  }

  async preview({ offerTtl }: { offerTtl?: number } = {}): Promise<Shown> {
    const { steps, code, text } = await this.#run("preview", undefined, offerTtl);
    const changes = steps.filter(({ op, urn }) => urn.includes(DYNAMIC_TYPE) && op !== "same");
    return { code, text, ...planOf(code === 0 ? changes : []) };
  }

  up(kill?: Kill): Promise<Ended> {
    return this.#run("up", kill);
  }

  destroy(kill?: Kill): Promise<Ended> {
    return this.#run("destroy", kill);
  }

  async cancel(): Promise<void> {}

  async pass(milliseconds: number): Promise<void> {
    this.ground.pass(milliseconds);
  }

  state(): Map<string, StateEntry> {
    return stateOf(this.#resources);
  }

  leaseIds(): string[] {
    return this.#resources.map(({ outputs }) => String(outputs.leaseId));
  }

  async #run(op: "preview" | "up" | "destroy", kill?: Kill, offerTtl = 3600) {
    const options = { stack: this.name, program: this.#program, dryRun: op === "preview", offerTtl, kill };
    const run = new ProviderRun(this.ground, options);
    const answer = run.answer.bind(run);
    const result = await this.engine.run(op, `${this.session}/${this.name}`, run.declarations(), answer);
    if (result.broken !== undefined) throw new Error(result.broken);
    if (result.resources)
      this.#resources = result.resources.filter(
        ({ urn, pendingReplacement }) => urn.includes(DYNAMIC_TYPE) && !pendingReplacement,
      );
    const text = [...run.warnings, result.text, result.error ?? ""].join("\n");
    return { steps: result.steps, code: result.error === undefined ? 0 : 255, text, wasKilled: run.wasKilled };
  }
}
