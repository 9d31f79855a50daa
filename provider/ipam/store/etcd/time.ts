import { get as getHttp } from "node:http";
import { get as getHttps } from "node:https";
import { OverlayError } from "../../../errors";
import { unavailable } from "./errors";
import type { Cluster } from "./url";

/** What time it is at etcd: the median of its members' clocks, so that a single wrong one does not count. */
export async function readClusterTime({ members, place, tls }: Cluster): Promise<number> {
  const answers = await Promise.all(members.map((member) => readMemberTime(member, tls)));
  const now = performance.now();
  const times = answers.flatMap((answer) => (answer ? [answer.time + now - answer.at] : [])).sort((a, b) => a - b);
  if (times.length > 0) return Math.round(times[times.length >> 1]!);
  const what = `No member of etcd at ${place} says what time it is.`;
  const fix = "Check that it runs, and that HTTP gets through to its client port.";
  throw unavailable(new OverlayError("STORE_UNAVAILABLE", what, fix));
}

/** Every HTTP answer carries its sender's time in whole seconds; the middle of that second is the best guess. */
function readMemberTime(member: string, tls: Cluster["tls"]): Promise<{ time: number; at: number } | undefined> {
  return new Promise((resolve) => {
    const get = member.startsWith("https:") ? getHttps : getHttp;
    const request = get(`${member}/version`, { ...tls, agent: false, timeout: 1000 }, (response) => {
      response.resume();
      const time = Date.parse(response.headers.date ?? "");
      resolve(Number.isNaN(time) ? undefined : { time: time + 500, at: performance.now() });
    });
    request.on("timeout", () => request.destroy());
    request.on("error", () => resolve(undefined));
  });
}

/** For how long an answer is used, in milliseconds. */
const LIFETIME = 60_000;

/** etcd's time, extrapolated from its last answer by the monotonic clock. This machine's wall clock may be wrong and is not used for it. */
export class ClusterClock {
  #answer: { time: number; at: number; wall: number } | undefined;

  /** `clock` replaces it, for tests. */
  constructor(
    private readonly cluster: Cluster,
    private readonly clock?: () => number,
  ) {}

  async now(): Promise<number> {
    if (this.clock) return this.clock();
    const known = this.#extrapolate();
    if (known !== undefined) return known;
    const time = await readClusterTime(this.cluster);
    this.#answer = { time, at: performance.now(), wall: Date.now() };
    return time;
  }

  #extrapolate(): number | undefined {
    if (!this.#answer) return undefined;
    const { time, at, wall } = this.#answer;
    const passed = performance.now() - at;
    // The monotonic clock stops while the machine is suspended. The wall clock shows that, and that it was set.
    const isTrusted = passed < LIFETIME && Math.abs(Date.now() - wall - passed) < 1000;
    return isTrusted ? Math.round(time + passed) : undefined;
  }
}
