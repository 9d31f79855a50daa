import { createAccessToken } from "../../provider/access/access-tokens";
import { openIpam } from "../../provider/ipam";
import { hostileBodies } from "../../test/unit/service/hostile-bodies";
import { ENGINES } from "../engines";
import { SETTINGS } from "../pool/adapter";
import { startInstance } from "./processes";
import { withResources } from "./resources";
import { prepareStore } from "./store";

/** Bodies that were sent, and what the worst of them cost. */
export interface HostileFigure {
  bodies: number;
  /** Milliseconds for which the event loop was held at most, and by what. */
  held: number;
  name: string;
  /** Bytes of the largest answer. */
  largestAnswer: number;
}

const BODIES = 1000;
/** `nodejs_eventloop_lag_max_seconds` is the longest time between two ticks of a timer of this many milliseconds. */
const TICK_MS = 10;

/** A body that seems to be over the aim is sent again: other work of the machine holds up the process, too. */
export const AIM_MS = 50;
const TRIES = 3;

/** Hostile bodies within the limits, one at a time. The service's own metrics say how long its event loop was held by each. */
export const benchHostile = (): Promise<HostileFigure> =>
  withResources(async (resources) => {
    console.error(`sqlite: sending ${BODIES} hostile bodies.`);
    const engine = await resources.add(ENGINES.sqlite.start());
    await prepareStore(engine.url);
    const authorization = `Bearer ${await createAdminToken(engine.url)}`;
    const { url } = await resources.add(startInstance(engine.url));
    const readHeld = async () => {
      const text = await (await fetch(`${url}/metrics`, { headers: { authorization } })).text();
      const seconds = Number(/^nodejs_eventloop_lag_max_seconds (\S+)$/m.exec(text)![1]);
      return Math.max(0, seconds * 1000 - TICK_MS);
    };
    const worst: HostileFigure = { bodies: 0, held: 0, name: "", largestAnswer: 0 };
    await readHeld(); // of the start
    for (const { name, path, body } of hostileBodies(BODIES)) {
      const headers = { authorization, "content-type": "application/json" };
      let held = Number.POSITIVE_INFINITY;
      for (let tries = 0; tries < TRIES && held > AIM_MS; tries++) {
        const answer = await (await fetch(url + path, { method: "POST", headers, body })).text();
        worst.largestAnswer = Math.max(worst.largestAnswer, Buffer.byteLength(answer));
        held = Math.min(held, await readHeld());
      }
      if (held > worst.held) Object.assign(worst, { held, name: `${path}: ${name}` });
      worst.bodies++;
    }
    return worst;
  });

async function createAdminToken(url: string): Promise<string> {
  const pool = await openIpam(url, SETTINGS);
  try {
    const input = { name: "hostile", scopes: ["admin" as const, "preview" as const] };
    return (await createAccessToken({ pool, createdBy: "bench" }, input)).text;
  } finally {
    await pool.end();
  }
}
