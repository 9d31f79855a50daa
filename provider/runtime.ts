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
import { MeshRunners } from "./lifecycle/mesh";
import { expandReferences, shortenReferences, wholeReferences } from "./lifecycle/shown-inputs";
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
  const parts = owner.split("::");
  const ownerNamed = (text: string): string => [...parts.slice(0, text.includes("::") ? -2 : -1), text].join("::");
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
    mesh: new MeshRunners(),
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
  const def = resourceOf(type);
  const call = <T>(method: string, shown: Values, act: (l: Lifecycle) => Promise<T>): Promise<T> =>
    traceCall(type, method, ownerOf(shown), async () => act(lifecycleOf(def, await getDependencies())));
  const expand = (shown: Values): Values => expandReferences(def, withoutProvider(shown));
  /** `like`: what Pulumi has given. */
  const shorten = (props: Values, like: Values): Values =>
    withoutUndefined(shortenReferences(def, props, wholeReferences(def, like)));
  return {
    configure,
    check: (olds: Values, news: Values) =>
      call("check", news, async (l) => {
        const { owner, dryRun, secretInputs, declared, program, resources, earlier, ...inputs } = withoutProvider(news);
        const secret = Array.isArray(secretInputs) ? secretInputs.map(String) : [];
        const checked = await l.check(
          {
            owner: scopedOwner(String(owner)),
            dryRun: dryRun === true,
            ...(typeof declared === "string" && readDeclared(declared)),
            ...(typeof program === "string" && { program }),
            ...(typeof resources === "string" && { declares: readResources(resources) }),
            earlier: readEarlier(earlier, scopedOwner(String(owner))),
            secretInputs: secret,
          },
          isNew(olds) ? undefined : expand(olds),
          inputs,
        );
        return { ...checked, inputs: shortenReferences(def, checked.inputs, secret) };
      }),
    diff: (_id: string, olds: Values, news: Values) =>
      call("diff", olds, async (l) => {
        const { changes, hasNewInputs, ...more } = await l.diff(expand(olds), expand(news));
        // The engine compares the inputs if the provider does not say whether there are changes, and then shows only those that differ.
        return hasNewInputs ? more : { changes, ...more };
      }),
    create: (inputs: Values) =>
      call("create", inputs, async (l) => {
        const { id, props } = await l.create(expand(inputs)).catch(keepState(inputs, shorten));
        showResult(def, props);
        return { id, outs: shorten(props, inputs) };
      }),
    read: (id: string, props: Values) =>
      call("read", props, async (l) => {
        const read = await l.read(id, expand(props));
        return { id: read.id, props: shorten(read.props, props), inputs: shorten(read.inputs, props) };
      }),
    update: (id: string, olds: Values, news: Values) =>
      call("update", news, async (l) => {
        const outs = await l.update(id, expand(olds), expand(news)).catch(keepState(news, shorten));
        showResult(def, outs);
        return { outs: shorten(outs, news) };
      }),
    delete: (_id: string, props: Values) => call("delete", props, (l) => l.delete(expand(props))),
  };
}

/** What the resource has now. */
function showResult({ result }: Definition, props: Values): void {
  const text = escapeControls(result(props));
  engineLog?.send({ severity: "info", text, urn: called.getStore() ?? "", isEphemeral: true });
}

const lifecycles = new Map<string, Lifecycle>();
function lifecycleOf(def: Definition, dependencies: Dependencies): Lifecycle {
  const lifecycle = lifecycles.get(def.type) ?? new Lifecycle(def, dependencies);
  lifecycles.set(def.type, lifecycle);
  return lifecycle;
}

const PROVIDER = "__provider";

const withoutProvider = ({ [PROVIDER]: _, ...values }: Values): Values => values;

/** Pulumi cannot serialize `undefined`. */
const withoutUndefined = (values: Values): Values =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** In the state of an earlier release the owner is shown. */
const ownerOf = ({ __owner, owner = __owner }: Values): unknown => owner;

const isNew = (values: Values | undefined): boolean => values === undefined || ownerOf(values) === undefined;

/** A partial state without the provider text could not be destroyed. */
const keepState = (given: Values, shorten: (props: Values, like: Values) => Values) => (error: unknown) => {
  if (!(error instanceof PartialFailure)) throw error;
  const properties = { ...shorten(error.properties, given), [PROVIDER]: given[PROVIDER] };
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
