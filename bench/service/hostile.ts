import { openIpam } from "../../provider/ipam";
import { hostileBodies } from "../../test/unit/service/hostile-bodies";
import { fillStore, hostileRequests, sentAgain } from "../../test/unit/service/hostile-requests";
import { longestTurn } from "../../test/unit/service/longest-turn";
import { TestService } from "../../test/unit/service/service";
import { ENGINES } from "../engines";
import { SETTINGS } from "../pool/adapter";
import { withResources } from "./resources";
import { prepareStore } from "./store";

/** Requests that were sent, and what the worst of them cost. */
export interface HostileFigure {
  what: "invalid bodies" | "valid requests";
  sent: number;
  /** Milliseconds for which the event loop was held at most, and by what. */
  held: number;
  name: string;
  /** Bytes of the largest answer. */
  largestAnswer: number;
}

const BODIES = 1000;
const LEASES = 9000;

/** What seems to be over the aim is sent again: garbage of earlier requests is collected in later ones. */
export const AIM_MS = 50;
const TRIES = 3;

interface Sent {
  method: string;
  url: string;
  name: string;
  payload(round: number): string | undefined;
}

/** Hostile requests within the limits, one at a time, in this process: CPU time, so that other work of the machine does not count. */
export const benchHostile = (): Promise<HostileFigure[]> =>
  withResources(async (resources) => {
    console.error(`sqlite: sending ${BODIES} hostile bodies, and valid requests to a subnet with ${LEASES} leases.`);
    const engine = await resources.add(ENGINES.sqlite.start());
    await prepareStore(engine.url);
    const pool = await openIpam(engine.url, { ...SETTINGS, offerTtl: 600 });
    await fillStore(pool, LEASES);
    const service = await TestService.on(pool);
    try {
      const token = await service.token("hostile", ["admin", "preview", "deploy"]);
      const bodies = [...hostileBodies(BODIES)].map(({ name, path: url, body }) => ({
        ...{ method: "POST", url, name: `${url}: ${name}` },
        payload: () => body,
      }));
      const requests = hostileRequests().map(({ route, name, url, body }) => ({
        ...{ method: route.split(" ")[0]!, url, name: `${route}: ${name}` },
        payload: (round: number) => sentAgain(body, round),
      }));
      return [
        await worstOf("invalid bodies", bodies, service, token),
        await worstOf("valid requests", requests, service, token),
      ];
    } finally {
      await service.app.close();
      await pool.end();
    }
  });

async function worstOf(
  what: HostileFigure["what"],
  all: Sent[],
  service: TestService,
  token: string,
): Promise<HostileFigure> {
  const worst: HostileFigure = { what, sent: all.length, held: 0, name: "", largestAnswer: 0 };
  for (const { method, url, name, payload } of all) {
    let held = Number.POSITIVE_INFINITY;
    for (let round = 0; round < TRIES && held > AIM_MS; round++) {
      const body = payload(round);
      const options = body === undefined ? {} : { payload: body, headers: { "content-type": "application/json" } };
      const turn = await longestTurn(async () => {
        const answer = await service.send(`${method} ${url}`, token, options);
        worst.largestAnswer = Math.max(worst.largestAnswer, Buffer.byteLength(answer.body));
      });
      held = Math.min(held, turn);
    }
    if (held > AIM_MS) console.error(`${held.toFixed(0)} ms: ${name}`);
    if (held > worst.held) Object.assign(worst, { held, name });
  }
  return worst;
}
