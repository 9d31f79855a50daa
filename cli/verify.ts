import type { Command } from "commander";
import { isOverlayError, OverlayError } from "../provider/errors";
import type { Connection, Host } from "../provider/host/connection";
import { readHostFacts } from "../provider/host/reconcile/host-state";
import { openIpam, type Store } from "../provider/ipam";
import { command, wholeNumber, withSettings } from "./command";
import {
  describeEnd,
  type Findings,
  findFailedHop,
  hasPassed,
  type NetworkEnd,
  type PingResult,
  parsePingResults,
  planPings,
  renderPings,
} from "./diagnosis";
import {
  CliHosts,
  findMembers,
  type Login,
  type MemberOptions,
  type NetworkMembers,
  parseConnection,
  parseNamedConnection,
  withLoginOptions,
} from "./hosts";
import { compareNaturally, type Output } from "./output";

/** `overlayctl verify`: pings between all hosts of a network, and which hop fails. */

interface Options extends MemberOptions, Login {
  count: number;
}

export const verifyCommand = (): Command =>
  withLoginOptions(command("verify", "Ping each host of a network from each other, also with full-size packets."))
    .argument("[network]", "name of the network; not needed if there is only one")
    .option(
      "--stack-export <file...>",
      "output of `pulumi stack export --show-secrets`, for its connections; - is standard input",
    )
    .option("--hub <host>", "the hub, as [user@]host[:port]", parseConnection)
    .option("--runner <name=host>", "a runner; may be repeated", parseNamedConnection)
    .option("--count <n>", "pings for each pair", wholeNumber, 5)
    .action(
      withSettings<Options>(async (settings, out, options, network) => {
        const pool = openOnce(() => openIpam(settings.store, settings));
        const where = { ...options, ...(network !== undefined && { network }) };
        const members = await findMembers(pool.get, where).finally(pool.end);
        const hosts = new CliHosts(settings, options);
        const findings = await hosts.use(() => askHostsAndPing(hosts, members, options.count));
        printPairs(out, members, findings);
      }),
    );

/** Opens the store only if the options do not give all hosts. */
function openOnce(open: () => Promise<Store>) {
  let pool: Promise<Store> | undefined;
  return { get: () => (pool ??= open()), end: async () => (await pool)?.end() };
}

/** Reads all hosts at the same time, then runs the pings. */
async function askHostsAndPing(
  hosts: CliHosts,
  { network, hub, runners }: NetworkMembers,
  count: number,
): Promise<Findings> {
  const findings: Findings = { ends: new Map(), results: [], unreachable: new Map() };
  const connected = new Map<string, Host>();
  const ask = async (name: string, role: NetworkEnd["role"], connection: Connection): Promise<void> => {
    try {
      const host = await hosts.connect(connection);
      findings.ends.set(name, describeEnd(name, role, network, await readHostFacts(host)));
      connected.set(name, host);
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      findings.unreachable.set(name, error);
      findings.ends.set(name, {
        name,
        role,
        addresses: [],
        tunnels: {},
        direct: [],
        wrong: {},
        suspects: { input: [], forward: [] },
      });
    }
  };
  const runnerList = Object.entries(runners);
  await Promise.all([ask("hub", "hub", hub), ...runnerList.map(([name, at]) => ask(name, "runner", at))]);
  const ends = [...findings.ends.values()];
  const probing = [...connected].map(async ([name, host]) => {
    const probes = planPings(findings.ends.get(name)!, ends);
    findings.results.push(...parsePingResults(probes, await runScript(host, renderPings(probes, count))));
  });
  await Promise.all(probing);
  return findings;
}

async function runScript(host: Host, script: string): Promise<string> {
  const { code, stdout, stderr } = await host.exec(script);
  if (code === 0) return stdout;
  const what =
    code === 127 ? `${host.name} has no '${stderr.trim()}'.` : `${host.name}: ${stderr.trim() || `exit code ${code}`}.`;
  throw new OverlayError(code === 127 ? "HOST_TOOL_MISSING" : "HOST_COMMAND_FAILED", what, "Correct it and run again.");
}

/** With more rows, only failures are printed. */
const MOST_ROWS = 200;

function printPairs(out: Output, { network }: NetworkMembers, findings: Findings): void {
  const order = [...findings.ends.keys()].sort(
    (a, b) => Number(b === "hub") - Number(a === "hub") || compareNaturally(a, b),
  );
  const place = ({ from, to }: { from: string; to: string }) => order.indexOf(from) * order.length + order.indexOf(to);
  const asked = findings.results
    .filter(({ layer }) => layer === "overlay")
    .map((answer) => describePair(answer, findings));
  const missing = order.flatMap((from) => describeUntried(from, order, asked, findings));
  const rows = [...asked, ...missing].sort((a, b) => place(a) - place(b));
  const failed = rows.filter(({ result }) => result !== "ok");
  const columns = ["from", "to", "address", "loss", "rtt", "mtu", "result", "hop"] as const;
  out.list(rows.length > MOST_ROWS ? failed : rows, [...columns]);
  for (const name of order.filter((each) => findings.unreachable.has(each)))
    out.note(`${name}: ${findings.unreachable.get(name)!.message}`);
  out.note(`${network}: ${rows.length - failed.length} of ${rows.length} pairs work.`);
  if (failed.length > 0) process.exitCode = 1;
}

const describePair = (answer: PingResult, findings: Findings) => {
  const { from, to, target, loss, rtt, mtu, passesFullSize } = answer;
  return {
    from,
    to,
    address: target as string | undefined,
    loss: `${loss}%` as string | undefined,
    rtt: rtt === undefined ? undefined : `${rtt} ms`,
    mtu: passesFullSize ? mtu : undefined,
    result: hasPassed(answer) ? "ok" : loss === 0 ? "too large" : "lost",
    hop: hasPassed(answer) ? undefined : findFailedHop(answer, findings),
  };
};

/** Paths that could not be tried: a host does not answer, or has no items of the network. */
function describeUntried(from: string, order: string[], asked: { from: string; to: string }[], findings: Findings) {
  const without = order.filter((to) => to !== from && !asked.some((each) => each.from === from && each.to === to));
  return without.map((to) => {
    const nothing = { from, to, target: "", layer: "overlay" as const, loss: 100, passesFullSize: false, mtu: 0 };
    const empty = { address: undefined, loss: undefined, rtt: undefined, mtu: undefined };
    return { from, to, ...empty, result: "not tried", hop: findFailedHop(nothing, findings) as string | undefined };
  });
}
