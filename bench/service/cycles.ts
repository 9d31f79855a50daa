import { ENGINES, type EngineName } from "../engines";
import { startDriver } from "./drivers";
import { type Programs, startInstance, startReference } from "./processes";
import { type Figure, figureOf } from "./report";
import { withResources } from "./resources";
import { prepareStore } from "./store";
import { API, CONSTANT, httpSubject, measureInTurn, ONE, poolSubject, type Rounds, TWO } from "./subjects";

/** Figures of one engine. What it is compared with is measured beside each, because the speed of the machine varies. */
export interface EngineCycles {
  engine: EngineName;
  durability: string;
  figures: Figure[];
}

/** In the subnet of a runner, which is empty, on a new store. */
export const benchCycles = (name: EngineName, programs: Programs, rounds: Rounds): Promise<EngineCycles> =>
  withResources(async (resources) => {
    console.error(`${name}: measuring reserve, use and release.`);
    const engine = await resources.add(ENGINES[name].start());
    const token = await prepareStore(engine.url);
    const driver = await resources.add(startDriver(programs.driver));
    const reference = await resources.add(startReference(programs.reference));
    const [first, second] = [
      await resources.add(startInstance(engine.url)),
      await resources.add(startInstance(engine.url)),
    ];
    const subjects = [
      httpSubject(CONSTANT, driver, { processes: [reference], base: "" }),
      await resources.add(poolSubject(engine.url, programs.pool)),
      httpSubject(ONE, driver, { processes: [first], base: API, token }),
      httpSubject(TWO, driver, { processes: [first, second], base: API, token }),
    ];
    const samples = await measureInTurn(subjects, rounds);
    const figures = subjects.map(({ system }, i) => figureOf(system, samples[i]!));
    return { engine: name, durability: engine.durability, figures };
  });
