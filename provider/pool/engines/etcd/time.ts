import { get as getHttp } from "node:http";
import { get as getHttps } from "node:https";
import { OverlayError } from "../../../errors";
import { StoreUnavailable } from "../server-engine";
import type { Cluster } from "./url";

/** What time it is at etcd: the median of its members' clocks, so that a single wrong one does not count. */
export async function readClusterTime({ members, place, tls }: Cluster): Promise<number> {
  const answers = await Promise.all(members.map((member) => readMemberTime(member, tls)));
  const now = performance.now();
  const times = answers.flatMap((answer) => (answer ? [answer.time + now - answer.at] : [])).sort((a, b) => a - b);
  if (times.length > 0) return Math.round(times[times.length >> 1]!);
  const what = `No member of etcd at ${place} says what time it is.`;
  const fix = "Check that it runs, and that HTTP gets through to its client port.";
  throw new StoreUnavailable(new OverlayError("STORE_UNAVAILABLE", what, fix));
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
