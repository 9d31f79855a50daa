import type { Command } from "commander";
import { isOverlayError, OverlayError } from "../errors";
import type { Connection, Host } from "../host/connection";
import { readHostFacts } from "../host/reconcile/host-state";
import { openPool, type Pool } from "../pool";
import { command, guarded, wholeNumber } from "./command";
import {
  type Answer,
  answersIn,
  blame,
  type End,
  endOf,
  type Findings,
  isFine,
  probeScript,
  probesFrom,
} from "./diagnosis";
import {
  connectionOf,
  type Login,
  Machines,
  type Members,
  membersOf,
  namedConnection,
  type Where,
  withLogin,
} from "./hosts";
import type { Output } from "./output";

interface Options extends Where, Login {
  count: number;
}

export const verifyCommand = (): Command =>
  withLogin(command("verify", "Ping every machine of a network from every other, with full-size packets, too."))
    .argument("[network]", "its name; not needed where there is only one")
    .option(
      "--stack-export <file...>",
      "take connections from `pulumi stack export --show-secrets`; - is standard input",
    )
    .option("--hub <host>", "the hub, as [user@]host[:port]", connectionOf)
    .option("--runner <name=host>", "a runner; may be repeated", namedConnection)
    .option("--count <n>", "pings for each pair", wholeNumber, 5)
    .action(
      guarded<Options>(async (settings, out, options, network) => {
        const pool = openedOnce(() => openPool(settings.store, settings));
        const where = { ...options, ...(network !== undefined && { network }) };
        const members = await membersOf(pool.get, where).finally(pool.end);
        const machines = new Machines(settings, options);
        const findings = await machines.use(() => findingsOf(machines, members, options.count));
        report(out, members, findings);
      }),
    );

/** The store is asked only where the options leave something open. */
function openedOnce(open: () => Promise<Pool>) {
  let pool: Promise<Pool> | undefined;
  return { get: () => (pool ??= open()), end: async () => (await pool)?.end() };
}

/** All machines at once: first what they have, then the pings. */
async function findingsOf(machines: Machines, { network, hub, runners }: Members, count: number): Promise<Findings> {
  const findings: Findings = { ends: new Map(), answers: [], silent: new Map() };
  const hosts = new Map<string, Host>();
  const ask = async (name: string, role: End["role"], connection: Connection): Promise<void> => {
    try {
      const host = await machines.connect(connection);
      findings.ends.set(name, endOf(name, role, network, await readHostFacts(host)));
      hosts.set(name, host);
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      findings.silent.set(name, error);
      findings.ends.set(name, {
        name,
        role,
        addresses: [],
        tunnels: {},
        wrong: {},
        suspects: { input: [], forward: [] },
      });
    }
  };
  const runnerList = Object.entries(runners);
  await Promise.all([ask("hub", "hub", hub), ...runnerList.map(([name, at]) => ask(name, "runner", at))]);
  const ends = [...findings.ends.values()];
  const probing = [...hosts].map(async ([name, host]) => {
    const probes = probesFrom(findings.ends.get(name)!, ends);
    findings.answers.push(...answersIn(probes, await said(host, probeScript(probes, count))));
  });
  await Promise.all(probing);
  return findings;
}

async function said(host: Host, script: string): Promise<string> {
  const { code, stdout, stderr } = await host.exec(script);
  if (code === 0) return stdout;
  const what =
    code === 127 ? `${host.name} has no '${stderr.trim()}'.` : `${host.name}: ${stderr.trim() || `exit code ${code}`}.`;
  throw new OverlayError(code === 127 ? "HOST_TOOL_MISSING" : "HOST_COMMAND_FAILED", what, "Mend it and run again.");
}

/** More rows than anybody reads: then only what fails. */
const READABLE = 200;

function report(out: Output, { network }: Members, findings: Findings): void {
  const order = [...findings.ends.keys()].sort((a, b) => Number(b === "hub") - Number(a === "hub") || compare(a, b));
  const place = ({ from, to }: { from: string; to: string }) => order.indexOf(from) * order.length + order.indexOf(to);
  const asked = findings.answers.filter(({ layer }) => layer === "overlay").map((answer) => row(answer, findings));
  const missing = order.flatMap((from) => missingRows(from, order, asked, findings));
  const rows = [...asked, ...missing].sort((a, b) => place(a) - place(b));
  const failed = rows.filter(({ result }) => result !== "ok");
  const columns = ["from", "to", "address", "loss", "rtt", "mtu", "result", "hop"] as const;
  out.list(rows.length > READABLE ? failed : rows, [...columns]);
  for (const [name, { message }] of findings.silent) out.note(`${name}: ${message}`);
  out.note(`${network}: ${rows.length - failed.length} of ${rows.length} pairs work.`);
  if (failed.length > 0) process.exitCode = 1;
}

const compare = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

const row = (answer: Answer, findings: Findings) => {
  const { from, to, target, loss, rtt, mtu, full } = answer;
  return {
    from,
    to,
    address: target as string | undefined,
    loss: `${loss}%` as string | undefined,
    rtt: rtt === undefined ? undefined : `${rtt} ms`,
    mtu: full ? mtu : undefined,
    result: isFine(answer) ? "ok" : loss === 0 ? "too large" : "lost",
    hop: isFine(answer) ? undefined : blame(answer, findings),
  };
};

/** Paths that could not be tried: a machine does not answer, or has nothing of the network. */
function missingRows(from: string, order: string[], asked: { from: string; to: string }[], findings: Findings) {
  const without = order.filter((to) => to !== from && !asked.some((each) => each.from === from && each.to === to));
  return without.map((to) => {
    const nothing = { from, to, target: "", layer: "overlay" as const, loss: 100, full: false, mtu: 0 };
    const empty = { address: undefined, loss: undefined, rtt: undefined, mtu: undefined };
    return { from, to, ...empty, result: "not tried", hop: blame(nothing, findings) as string | undefined };
  });
}
