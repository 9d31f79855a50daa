import { AsyncLocalStorage } from "node:async_hooks";
import { appendFileSync } from "node:fs";
import { connect } from "node:net";
import { z } from "zod";
import { EngineLog, type LogMessage } from "./engine-log";
import { escapeControls, isOverlayError, OverlayError } from "./errors";
import { NO_PHASE, type Phase } from "./host/connection";
import { createFleet } from "./host/fleet";
import { Reconciler } from "./host/reconcile/reconciler";
import { openHosts } from "./host/ssh/hosts";
import { openIpam, refuseUnknownUrl } from "./ipam";
import { RunPlan } from "./ipam/run-plan";
import { isSignedHere } from "./ipam/token";
import { readDeclared, readResources } from "./lifecycle/declared";
import type { Dependencies, EarlierOwner } from "./lifecycle/dependencies";
import { Lifecycle, PartialFailure } from "./lifecycle/lifecycle";
import type { Values } from "./lifecycle/values";
import { urnOf } from "./owner";
import type { Definition } from "./resource";
import { resourceOf } from "./resources";
import { RESERVED_SCOPES, readSettings, type Settings, sshSettings } from "./settings";

/**
 * The dynamic provider that Pulumi runs. The provider text in Pulumi's state is a constant line that loads this module, so that the
 * state has no code, and the installed version also deletes resources of older ones. One process serves a whole run: its resources
 * share SSH connections and the store.
 */
interface DynamicConfig {
  get(key: string): string | undefined;
}

let settings: Settings | undefined;
let dependencies: Promise<Dependencies> | undefined;
let config: DynamicConfig | undefined;

/**
 * Stores the configuration. Pulumi does not wait for it, so the first other call builds the dependencies. Exported because the
 * provider texts of old states call it.
 */
export function configure(request: { config: DynamicConfig }): void {
  config = request.config;
}

const getSettings = (): Settings => (settings ??= readSettings((key) => config?.get(`overlay:${key}`)));

const getDependencies = (): Promise<Dependencies> =>
  (dependencies ??= Promise.resolve().then(() => buildDependencies(getSettings())));

/**
 * Owners begin with the organization, which the SDK puts there, or with the setting `scope`. All self-managed backends have the
 * organization `organization`, so a shared store needs a scope.
 */
const scopedOwner = (owner: string): string => {
  const { scope, store } = getSettings();
  if (scope) return scope + owner.slice(owner.indexOf("/"));
  const organization = owner.slice(0, owner.indexOf("/"));
  if (RESERVED_SCOPES.includes(organization.toLowerCase()))
    throw new OverlayError(
      "SETTING_INVALID",
      `The organization is called ${organization}, which is a reserved word.`,
      "Set overlay:scope (or OVERLAY_SCOPE) to another name, the same for all deployments of this stack.",
    );
  if (!owner.startsWith("organization/") || isLocal(store)) return owner;
  refuseUnknownUrl(store);
  throw new OverlayError(
    "SETTING_INVALID",
    "The store is shared, and this backend has no organization that distinguishes its stacks from those of other backends.",
    "Set overlay:scope (or OVERLAY_SCOPE) to a unique name, the same for all deployments of this stack.",
  );
};

const earlierNames = z.array(z.tuple([z.string()], z.string()));

/** `passed`: see `namesBefore` of the SDK. */
function readEarlier(passed: unknown, owner: string): EarlierOwner[] {
  const ownerNamed = (name: string): string => owner.slice(0, owner.lastIndexOf("::") + 2) + name;
  return (earlierNames.safeParse(passed).data ?? []).map(([name, former]) => ({
    owner: ownerNamed(name),
    ...(former !== undefined && { formerOwner: ownerNamed(former) }),
  }));
}

const isLocal = (store: string): boolean => /^(sqlite|memory):/.test(store);

function buildDependencies(settings: Settings): Dependencies {
  if (process.env.CI && isLocal(settings.store)) {
    warnOnce(
      `the pool is a file on this machine, ${settings.store}, which other machines cannot use. Set overlay:store to share it.`,
    );
  }
  let pool: Promise<RunPlan> | undefined;
  // A failure is also kept, because Pulumi calls check serially, and each call would wait for the timeout.
  const thePool = () => (pool ??= openIpam(settings.store, settings).then((ipam) => new RunPlan(ipam)));
  const { hosts, login } = sshSettings(settings);
  const reconciler = new Reconciler((conversation) => trace({ conversation }), { warn: warnOnce });
  return {
    pool: thePool,
    fleet: createFleet(openHosts(hosts, { notify: noteOnce }), reconciler, login, openPhase),
    unreachableOnDelete: settings.unreachableOnDelete,
    tenantDefaults: settings.tenantDefaults,
    tenant: settings.tenant,
    warn: warnOnce,
    note: noteOnce,
    token: async (lease) => (await (await thePool()).ipam.signTokens([lease]))[0]!,
    isSignedHere: async (token) => isSignedHere(token, (await thePool()).ipam),
  };
}

/** Pulumi starts a provider with the address of its engine. */
const [engineAddress, engineHost, enginePort] = process.argv[1]?.includes("dynamic-provider")
  ? (/^([\w.-]+):(\d+)$/.exec(process.argv[2] ?? "") ?? [])
  : [];
const engineLog = engineAddress === undefined ? undefined : new EngineLog(engineAddress);

/** The URN of the resource that is called. */
const called = new AsyncLocalStorage<string>();

const said = new Set<string>();

/** Shown once in a run, at the resource whose call said it first. */
function sayOnce(message: Omit<LogMessage, "urn">): void {
  if (said.has(message.text)) return;
  said.add(message.text);
  const text = escapeControls(message.text);
  if (engineLog) engineLog.send({ ...message, text, urn: called.getStore() ?? "" });
  else console.error(message.severity === "warning" ? `warning: ${text}` : text);
}

/** Of the resource that is called now. Pipelines have no use for phases: their log keeps each line. */
function openPhase(): Phase {
  const urn = called.getStore();
  if (!engineLog || !urn || process.env.CI) return NO_PHASE;
  const { report, end } = engineLog.openPhase(urn);
  return { report: (text) => report(escapeControls(text)), end };
}

const warnOnce = (text: string): void => sayOnce({ severity: "warning", text });
const noteOnce = (text: string): void => sayOnce({ severity: "info", text });

/** OVERLAY_TRACE=FILE: one line of JSON for each call and conversation, for tests and measurements. */
function trace(event: object): void {
  const file = process.env.OVERLAY_TRACE;
  if (!file) return;
  const { user, system } = process.cpuUsage();
  const cpu = Math.round((user + system) / 1000);
  appendFileSync(file, `${JSON.stringify({ at: Date.now(), pid: process.pid, cpu, ...event })}\n`);
}

/**
 * If the CLI dies, this process must exit: it must not write to a host after the next `up`. A connection to Pulumi's engine shows it at once,
 * also if the CLI died before this module was loaded. The engine ends connections that say nothing after a while: then another one is opened.
 */
function exitWithEngine(host: string, port: number): void {
  const socket = connect({ host, port }).unref();
  const exit = () => process.exit(1);
  socket.once("error", exit);
  socket.once("connect", () => {
    socket.off("error", exit).on("error", () => {});
    socket.once("close", () => exitWithEngine(host, port));
  });
  socket.resume();
}

if (engineHost) exitWithEngine(engineHost, Number(enginePort));

/** The methods of Pulumi's dynamic provider. Each calls the lifecycle of its type. */
export function provider(type: string) {
  const call = <T>(method: string, urn: unknown, act: (l: Lifecycle) => Promise<T>): Promise<T> =>
    traceCall(type, method, urn, async () => act(lifecycleOf(type, await getDependencies())));
  return {
    configure,
    check: (olds: Values, news: Values) =>
      call("check", news.owner, async (l) => {
        const { owner, dryRun, secretInputs, declared, program, resources, earlier, ...inputs } = withoutProvider(news);
        return l.check(
          {
            owner: scopedOwner(String(owner)),
            dryRun: dryRun === true,
            ...(typeof declared === "string" && readDeclared(declared)),
            ...(typeof program === "string" && { program }),
            ...(typeof resources === "string" && { declares: readResources(resources) }),
            earlier: readEarlier(earlier, scopedOwner(String(owner))),
            secretInputs: Array.isArray(secretInputs) ? secretInputs.map(String) : [],
          },
          isNew(olds) ? undefined : olds,
          inputs,
        );
      }),
    diff: (_id: string, olds: Values, news: Values) =>
      call("diff", olds.owner, async (l) => {
        const { changes, hasNewInputs, ...more } = await l.diff(olds, news);
        // The engine compares the inputs if the provider does not say whether there are changes, and then shows only those that differ.
        return hasNewInputs ? more : { changes, ...more };
      }),
    create: (inputs: Values) =>
      call("create", inputs.owner, async (l) => {
        const { id, props } = await l.create(withoutProvider(inputs)).catch(keepProvider(inputs));
        showResult(l.def, props);
        return { id, outs: withoutUndefined(props) };
      }),
    read: (id: string, props: Values) =>
      call("read", props.owner, async (l) => {
        const read = await l.read(id, withoutProvider(props));
        return { ...read, props: withoutUndefined(read.props) };
      }),
    update: (id: string, olds: Values, news: Values) =>
      call("update", news.owner, async (l) => {
        const outs = await l.update(id, withoutProvider(olds), withoutProvider(news)).catch(keepProvider(news));
        showResult(l.def, outs);
        return { outs: withoutUndefined(outs) };
      }),
    delete: (_id: string, props: Values) => call("delete", props.owner, (l) => l.delete(withoutProvider(props))),
  };
}

/** What the resource has now. */
function showResult({ result }: Definition, props: Values): void {
  const text = escapeControls(result(props));
  engineLog?.send({ severity: "info", text, urn: called.getStore() ?? "", isEphemeral: true });
}

const lifecycles = new Map<string, Lifecycle>();
function lifecycleOf(type: string, dependencies: Dependencies): Lifecycle {
  const lifecycle = lifecycles.get(type) ?? new Lifecycle(resourceOf(type), dependencies);
  lifecycles.set(type, lifecycle);
  return lifecycle;
}

const PROVIDER = "__provider";

const withoutProvider = ({ [PROVIDER]: _, ...values }: Values): Values => values;

/** Pulumi cannot serialize `undefined`. */
const withoutUndefined = (values: Values): Values =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

const isNew = (values: Values | undefined): boolean => values?.owner === undefined;

/** A partial state without the provider text could not be destroyed. */
const keepProvider = (given: Values) => (error: unknown) => {
  if (!(error instanceof PartialFailure)) throw error;
  const properties = { ...withoutUndefined(error.properties), [PROVIDER]: given[PROVIDER] };
  throw Object.assign(new Error(error.message), { id: error.id, properties, reasons: [error.message] });
};

async function traceCall<T>(type: string, method: string, owner: unknown, act: () => Promise<T>): Promise<T> {
  const started = performance.now();
  try {
    return await called.run(urnOf(String(owner)), act);
  } catch (error) {
    // Pulumi also prints the thrown error with its stack: the message once is enough.
    if (isOverlayError(error) && !process.env.OVERLAY_DEBUG)
      Object.assign(error, { toString: () => `${type} ${String(owner).split("::").at(-1)}`, stack: error.code });
    throw error;
  } finally {
    await engineLog?.flush();
    trace({ call: method, type, owner, milliseconds: Math.round(performance.now() - started) });
  }
}
