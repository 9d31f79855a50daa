import type { Random } from "../random";
import { type EditContext, editProgram, newProgram } from "./edits";
import { type Declaration, isResourceReference, type Program } from "./program";
import { Naming, nameAtCreation } from "./resources";
import type { FuzzStep, StepOutcome } from "./session";
import type { Kill } from "./stack";

/** Random steps of one to four stacks on one store. Each next step depends on the seed and on the outcomes of earlier ones. */
export class Scenario {
  readonly #naming = new Naming();
  /** By stack: the program of the last up that succeeded. */
  readonly #programs: (Program | undefined)[];
  #left: number;

  constructor(
    private readonly random: Random,
    rounds: number = random.integer(4, 9),
    /** Hosts of a lab. The first stack has them all. */
    private readonly hosts: string[] = [],
  ) {
    const stacks = Number(random.pickWeighted({ 1: 5, 2: 4, 3: 2, 4: 1 }));
    this.#programs = Array.from({ length: stacks }, () => undefined);
    this.#left = rounds;
  }

  /** The next steps, or undefined at the end. At the end everything is destroyed; stacks that use a pool of another come before it. */
  next(): FuzzStep[] | undefined {
    this.#left--;
    if (this.#left > 0) return this.#round();
    if (this.#left < 0) return undefined;
    return this.#programs
      .flatMap((program, stack): FuzzStep[] => (program ? [{ act: "destroy", stack, program: [] }] : []))
      .reverse();
  }

  recordOutcome(step: FuzzStep, outcome: StepOutcome): void {
    if (step.act === "up" && outcome === "done") this.#programs[step.stack] = step.program;
    if (step.act === "destroy" && outcome === "done" && !step.kill) this.#programs[step.stack] = undefined;
  }

  #round(): FuzzStep[] {
    const { random } = this;
    const stack = random.integer(0, this.#programs.length - 1);
    const current = this.#programs[stack];
    const program = this.#editOrCreate(stack);
    const up = (more: Partial<FuzzStep> = {}): FuzzStep =>
      ({ act: "up", stack, program, previewFirst: true, ...this.#insist(), ...more }) as FuzzStep;
    const kind = random.pickWeighted({
      previewed: 9,
      unpreviewed: 3,
      branch: 3,
      interleaved: this.#programs.length > 1 ? 5 : 0,
      expired: 2,
      killedUp: 4,
      killedDestroy: current ? 2 : 0,
      destroyed: current ? 0.5 : 0,
    });
    if (kind === "unpreviewed") return [up({ previewFirst: false })];
    if (kind === "branch") {
      const branch = current ? editProgram(current, this.#context(stack)) : newProgram(this.#context(stack));
      return [
        { act: "preview", stack, program },
        { act: "preview", stack, program: branch },
        up({ previewFirst: random.chance(0.3) }),
      ];
    }
    if (kind === "interleaved") return this.#interleave(stack, program);
    if (kind === "expired") return this.#letOffersExpire(stack, program);
    if (kind === "killedUp") return [up({ previewFirst: random.chance(0.8), kill: this.#kill() })];
    if (kind === "killedDestroy") return [{ act: "destroy", stack, program: current!, kill: this.#kill() }];
    if (kind === "destroyed") return [{ act: "destroy", stack, program: current! }, up({ program: current! })];
    return [up()];
  }

  /** Previews of two stacks, then their ups in either order. */
  #interleave(stack: number, program: Program): FuzzStep[] {
    const other = (stack + this.random.integer(1, this.#programs.length - 1)) % this.#programs.length;
    const theirs = this.#editOrCreate(other);
    const ups: FuzzStep[] = [
      { act: "up", stack, program, previewFirst: false },
      { act: "up", stack: other, program: theirs, previewFirst: this.random.chance(0.3) },
    ];
    return [
      { act: "preview", stack, program },
      { act: "preview", stack: other, program: theirs },
      ...(this.random.chance(0.5) ? ups : ups.reverse()),
    ];
  }

  /** The offers of a preview end; another stack may take their values before its up. */
  #letOffersExpire(stack: number, program: Program): FuzzStep[] {
    const other = this.random.integer(0, this.#programs.length - 1);
    const up: FuzzStep = { act: "up", stack, program, previewFirst: false };
    return [
      { act: "preview", stack, program, expires: true },
      ...(other === stack ? [] : [{ ...up, stack: other, program: this.#editOrCreate(other) }]),
      up,
      { ...up, previewFirst: true },
    ];
  }

  #editOrCreate(stack: number): Program {
    const current = this.#programs[stack];
    return current ? editProgram(current, this.#context(stack)) : newProgram(this.#context(stack));
  }

  /** Stacks use pools of those before them only, so that they can be destroyed in the other order. */
  #context(stack: number): EditContext {
    const others = this.#programs.slice(0, stack).flatMap((program) => (program ? findSharedResources(program) : []));
    return { random: this.random, naming: this.#naming, others, hosts: stack === 0 ? this.hosts : [] };
  }

  #insist(): { insist?: boolean } {
    return this.random.chance(0.4) ? { insist: true } : {};
  }

  #kill(): Kill {
    return {
      afterChanges: this.random.integer(0, 4),
      milliseconds: this.random.pickOne([0, 0, 5, 20, 60, 150]),
      target: this.random.pickWeighted({ both: 5, cli: 3, provider: 2 }),
    };
  }
}

/** Pools, and runners under the names that other stacks use. */
function findSharedResources(program: Program): Declaration[] {
  const named = new Map(program.map((each) => [each.name, nameAtCreation(each)]));
  return program.flatMap((each) => {
    if (each.type === "IPPool") return [each];
    const { network } = each.args;
    if (each.type !== "RunnerSubnet" || !isResourceReference(network)) return [];
    return [{ type: each.type, name: `${named.get(network.$resource)}/${nameAtCreation(each)}`, args: {} }];
  });
}
