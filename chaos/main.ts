import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { diskFolder } from "../bench/engines";
import { table } from "../bench/table";
import { openIpam } from "../provider/ipam";
import { createChaosPool, POOL, SETTINGS, toGrantedLease } from "./chaos-pool";
import { findViolations, type Violation } from "./check";
import { type Entry, entriesOf, processesIn } from "./ledger";
import type { ViolationKind } from "./model";
import { parseStores, STORES, type Store } from "./stores";
import { Workers } from "./workers";

/**
 * `npm run chaos -- pool`; exits with 1 if a check fails. Eight processes claim, use and release in one small pool while they are killed and their server crashes. Then all answers are
 * compared with each other and with the store: no address is held twice, lost or changed.
 */
async function chaosPool(args: string[]): Promise<boolean> {
  const options = { engines: { type: "string" }, seconds: { type: "string", default: "45" } } as const;
  const { values } = parseArgs({ args, options });
  const outcomes: RunResult[] = [];
  for (const name of parseStores(values.engines)) {
    const { missing } = STORES[name]!;
    if (missing) console.error(`${name} is left out: ${missing}.`);
    else outcomes.push(await runOn(name, Number(values.seconds)));
  }
  report(outcomes);
  return outcomes.every(isClean);
}

/** A run continues past its time until it has reached its aim, up to so many times as long. */
const AT_MOST = 6;

interface RunResult {
  engine: string;
  seconds: number;
  entries: Entry[];
  kills: number;
  crashes: number;
  fault?: string;
  violations: Violation[];
  /** Where its ledgers are kept, if something is wrong. */
  ledgers?: string;
  fsck: string[];
}

async function runOn(name: string, seconds: number): Promise<RunResult> {
  console.error(`${name}: at least ${seconds} s of claims and kills.`);
  const folder = diskFolder();
  const store = await STORES[name]!.start();
  const ledgers = join(folder, "ledgers");
  let isKept = false;
  try {
    const pool = await openIpam(store.url, SETTINGS);
    await createChaosPool(pool);
    await pool.end();
    const started = Date.now();
    const { workers, crashes } = await runWithFaults(name, store, ledgers, seconds);
    const entries = ledgersIn(ledgers);
    const found = await compareStore(store, entries);
    const faults = workers.faults.map((what): Violation => ({ kind: "fault", owner: "a worker", what }));
    const violations = [...found.violations, ...faults];
    isKept = violations.length > 0;
    return {
      engine: name,
      seconds: (Date.now() - started) / 1000,
      entries,
      kills: workers.kills,
      crashes,
      ...(store.fault && { fault: store.fault.name }),
      violations,
      ...(isKept && { ledgers }),
      fsck: found.fsck,
    };
  } finally {
    await store.stop();
    if (!isKept) rmSync(folder, { recursive: true, force: true });
  }
}

const ledgersIn = (folder: string): Entry[] => processesIn(folder).flatMap((process) => entriesOf(folder, process));
const claimsIn = (entries: Entry[]): number =>
  entries.filter(({ call, result }) => call === "claim" && result && "got" in result).length;

async function runWithFaults(name: string, store: Store, folder: string, seconds: number) {
  mkdirSync(folder);
  const { aim } = STORES[name]!;
  const workers = new Workers(store.url, folder);
  const [soonest, latest] = [Date.now() + seconds * 1000, Date.now() + AT_MOST * seconds * 1000];
  let [crashes, going] = [0, true];
  const isEnough = () =>
    workers.kills >= aim.kills && crashes >= aim.crashes && claimsIn(ledgersIn(folder)) >= aim.claims;
  const watching = async () => {
    while (Date.now() < soonest || (Date.now() < latest && !isEnough())) await sleep(1000);
    going = false;
  };
  // Fast enough to reach the aim in time, slower afterwards.
  const pause = (so: number, wanted: number) =>
    sleep((Math.random() * 1500 * (so < wanted ? 1 : 3) * seconds) / wanted);
  const killing = async () => {
    for (; going; await pause(workers.kills, aim.kills)) workers.killOne();
  };
  // No call succeeds while the server is down, so a server that starts slowly is crashed less often.
  const crashing = async ({ inject }: NonNullable<Store["fault"]>) => {
    while (going) {
      const began = Date.now();
      if (await inject()) crashes++;
      await Promise.all([pause(crashes, aim.crashes), sleep(2 * (Date.now() - began))]);
    }
  };
  await Promise.all([watching(), killing(), store.fault && crashing(store.fault)]);
  await workers.end();
  return { workers, crashes };
}

async function compareStore(store: Store, entries: Entry[]): Promise<Pick<RunResult, "violations" | "fsck">> {
  const pool = await openIpam(store.url, SETTINGS);
  const leases = await pool.leases(POOL, { limit: 10_000 });
  const fsck = (await pool.admin.fsck()).map(({ pool: where, problem }) => `${where}: ${problem}`);
  await pool.end();
  const stored = leases.map((lease) => ({ owner: lease.owner, ...toGrantedLease(lease) }));
  return { violations: findViolations(entries, stored), fsck };
}

const isClean = ({ violations, fsck }: RunResult): boolean => violations.length + fsck.length === 0;
const KINDS: ViolationKind[] = ["duplicate", "lost", "changed", "fault"];

function report(outcomes: RunResult[]): void {
  const head = ["", "seconds", "calls", "claims", "cut off", "kills -9", "crashes", ...KINDS, "fsck"];
  const rows = outcomes.map((outcome) => {
    const { engine, seconds, entries, kills, crashes, violations, fsck } = outcome;
    const cutOff = entries.filter(({ result }) => !result).length;
    const counts = [seconds, entries.length, claimsIn(entries), cutOff, kills, crashes].map(number);
    const kinds = KINDS.map((kind) => number(violations.filter((violation) => violation.kind === kind).length));
    return [engine, ...counts, ...kinds, fsck.length ? number(fsck.length) : "clean"];
  });
  console.log(table([head, ...rows], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]));
  for (const { engine, fault } of outcomes) if (fault) console.log(`Crashes of ${engine}: ${fault}.`);
  for (const { engine, violations, ledgers, fsck } of outcomes) {
    for (const { kind, owner, what } of violations.slice(0, 20)) console.log(`${engine}: ${kind}: ${owner} ${what}`);
    for (const problem of fsck.slice(0, 20)) console.log(`${engine}: fsck: ${problem}`);
    if (ledgers) console.log(`${engine}: the calls and answers of all processes are in ${ledgers}.`);
  }
  for (const { engine, entries, kills, crashes } of outcomes) {
    const [aim, claims] = [STORES[engine]!.aim, claimsIn(entries)];
    if (claims < aim.claims || kills < aim.kills || crashes < aim.crashes)
      console.log(
        `${engine}: ${claims} of ${aim.claims} claims, ${kills} of ${aim.kills} kills, ${crashes} of ${aim.crashes} crashes; give it more --seconds.`,
      );
  }
}

const number = (value: number): string => Math.round(value).toLocaleString("en");

async function main([name = "", ...args]: string[]): Promise<number> {
  if (name === "pool") return (await chaosPool(args)) ? 0 : 1;
  console.error("npm run chaos -- pool [--engines sqlite,postgres,failover,etcd] [--seconds N]");
  return 2;
}

main(process.argv.slice(2)).then(
  (code) => {
    process.exitCode = code;
  },
  (error: unknown) => {
    console.error(error);
    process.exitCode = 1;
  },
);
