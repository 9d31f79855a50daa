import { appendFileSync, readFileSync } from "node:fs";
import { escapeControls, isOverlayError, OverlayError } from "./errors";
import { createFleet } from "./host/fleet";
import { Reconciler } from "./host/reconcile/reconciler";
import { openHosts } from "./host/ssh/hosts";
import { readDeclared } from "./lifecycle/declared";
import type { Dependencies } from "./lifecycle/dependencies";
import { Lifecycle, PartialFailure } from "./lifecycle/lifecycle";
import type { Values } from "./lifecycle/values";
import { openPool } from "./pool";
import { isSignedHere, type KeyRing, ringOf, tokenOf } from "./pool/token";
import type { Pool } from "./pool/types";
import { resourceOf } from "./resources";
import { RESERVED_SCOPES, readSettings, type Settings, sshSettings } from "./settings";

/**
 * Composition root of the dynamic face. The provider text in Pulumi's state is a constant line that calls this module,
 * so that state holds no code, and today's code also deletes what an older version made. One process serves a
 * whole run, so connections and the store are shared by all its resources.
 */
interface DynamicConfig {
  get(key: string): string | undefined;
}

let settings: Settings | undefined;
let dependencies: Promise<Dependencies> | undefined;
let config: DynamicConfig | undefined;

/**
 * Pulumi's host does not wait for it before other calls: those build the dependencies from what it stored here. Exported for the
 * longer texts in states of earlier days.
 */
export function configure(request: { config: DynamicConfig }): void {
  config = request.config;
}

const getSettings = (): Settings => (settings ??= readSettings((key) => config?.get(`overlay:${key}`)));

const getDependencies = (): Promise<Dependencies> =>
  (dependencies ??= Promise.resolve().then(() => buildDependencies(getSettings())));

/** The SDK puts the organization first; self-managed backends are all called `organization`, so a scope can stand there. */
const scopedOwner = (owner: string): string => {
  const { scope, store } = getSettings();
  if (scope) return scope + owner.slice(owner.indexOf("/"));
  const organization = owner.slice(0, owner.indexOf("/"));
  if (RESERVED_SCOPES.includes(organization.toLowerCase()))
    throw new OverlayError(
      "SETTING_INVALID",
      `The organization ${organization} has a name that owners of no stack have.`,
      "Set overlay:scope (or OVERLAY_SCOPE) to another word, the same wherever this stack is deployed.",
    );
  if (!owner.startsWith("organization/") || isLocal(store)) return owner;
  throw new OverlayError(
    "SETTING_INVALID",
    "The store is shared, and this backend has no organization to tell its stacks from those of other backends.",
    "Set overlay:scope (or OVERLAY_SCOPE) to a name of your own, the same wherever this stack is deployed.",
  );
};

const isLocal = (store: string): boolean => /^(sqlite|memory):/.test(store);

function buildDependencies(settings: Settings): Dependencies {
  exitWithParent();
  if (process.env.CI && isLocal(settings.store)) {
    warnOnce(`the pool is a file on this machine, ${settings.store}; other machines do not see it (overlay:store).`);
  }
  let pool: Promise<Pool> | undefined;
  // A failure is kept too: check is serial, and a thousand timeouts are hours.
  const thePool = () => (pool ??= openPool(settings.store, settings));
  let ring: Promise<KeyRing> | undefined;
  const theRing = () => (ring ??= thePool().then((opened) => ringOf(opened, settings.tokenKeys)));
  const { hosts, login } = sshSettings(settings);
  const reconciler = new Reconciler((conversation) => trace({ conversation }), { warn: warnOnce });
  return {
    pool: thePool,
    fleet: createFleet(openHosts(hosts, { notify: printOnce }), reconciler, login),
    unreachableOnDelete: settings.unreachableOnDelete,
    tenantDefaults: settings.tenantDefaults,
    tenant: settings.tenant,
    warn: warnOnce,
    token: async (lease) => tokenOf(lease, await theRing()),
    isSignedHere: async (token) => isSignedHere(token, await thePool(), settings.tokenKeys),
  };
}

const printed = new Set<string>();

/** Pulumi shows what the provider writes to stderr, while the run goes on. */
function printOnce(text: string): void {
  if (printed.has(text)) return;
  printed.add(text);
  console.error(escapeControls(text));
}

const warnOnce = (text: string): void => printOnce(`warning: ${text}`);

/** OVERLAY_TRACE=FILE: one line of JSON for each call and conversation, for tests and measurements. */
function trace(event: object): void {
  const file = process.env.OVERLAY_TRACE;
  if (file) appendFileSync(file, `${JSON.stringify({ at: Date.now(), pid: process.pid, ...event })}\n`);
}

/**
 * When the CLI is killed its provider lives on, and must not write to a host after the next up. Pulumi starts us through
 * a shell script, so it is the parent's parent that counts; where that cannot be seen, the lease's fence has to do.
 */
function exitWithParent(): void {
  const [parent, starter] = [process.ppid, parentOf(process.ppid)];
  const orphaned = (): boolean => process.ppid !== parent || parentOf(parent) !== starter;
  setInterval(() => orphaned() && process.exit(1), 200).unref();
}

function parentOf(pid: number): string | undefined {
  try {
    return /\) \S (\d+) /.exec(readFileSync(`/proc/${pid}/stat`, "utf8"))?.[1];
  } catch {
    return undefined;
  }
}

/** Pulumi's dynamic provider methods, each a short hop to the lifecycle. */
export function provider(type: string) {
  const call = <T>(method: string, urn: unknown, act: (l: Lifecycle) => Promise<T>): Promise<T> =>
    traceCall(type, method, urn, async () => act(lifecycleOf(type, await getDependencies())));
  return {
    configure,
    check: (olds: Values, news: Values) =>
      call("check", news.owner, async (l) => {
        const { owner, dryRun, secretInputs, declared, program, ...inputs } = withoutProvider(news);
        return l.check(
          {
            owner: scopedOwner(String(owner)),
            dryRun: dryRun === true,
            ...(typeof declared === "string" && { movesAway: readDeclared(declared) }),
            ...(typeof program === "string" && { program }),
            secretInputs: Array.isArray(secretInputs) ? secretInputs.map(String) : [],
          },
          isNew(olds) ? undefined : olds,
          inputs,
        );
      }),
    diff: (_id: string, olds: Values, news: Values) => call("diff", olds.owner, (l) => l.diff(olds, news)),
    create: (inputs: Values) =>
      call("create", inputs.owner, async (l) => {
        const { id, props } = await l.create(withoutProvider(inputs)).catch(keepProvider(inputs));
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
        return { outs: withoutUndefined(outs) };
      }),
    delete: (_id: string, props: Values) => call("delete", props.owner, (l) => l.delete(withoutProvider(props))),
  };
}

const lifecycles = new Map<string, Lifecycle>();
function lifecycleOf(type: string, dependencies: Dependencies): Lifecycle {
  const lifecycle = lifecycles.get(type) ?? new Lifecycle(resourceOf(type), dependencies);
  lifecycles.set(type, lifecycle);
  return lifecycle;
}

const PROVIDER = "__provider";

const withoutProvider = ({ [PROVIDER]: _, ...values }: Values): Values => values;

/** What has no value must not be there: Pulumi cannot carry it. */
const withoutUndefined = (values: Values): Values =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

const isNew = (values: Values | undefined): boolean => values?.owner === undefined;

/** Partial state without the provider's text could never be destroyed. */
const keepProvider = (given: Values) => (error: unknown) => {
  if (!(error instanceof PartialFailure)) throw error;
  const properties = { ...withoutUndefined(error.properties), [PROVIDER]: given[PROVIDER] };
  throw Object.assign(new Error(error.message), { id: error.id, properties, reasons: [error.message] });
};

async function traceCall<T>(type: string, method: string, owner: unknown, act: () => Promise<T>): Promise<T> {
  const started = performance.now();
  try {
    return await act();
  } catch (error) {
    // Pulumi's host prints what is thrown, with its stack, beside reporting it: the message once is enough.
    if (isOverlayError(error) && !process.env.OVERLAY_DEBUG)
      Object.assign(error, { toString: () => `${type} ${String(owner).split("::").at(-1)}`, stack: error.code });
    throw error;
  } finally {
    trace({ call: method, type, owner, milliseconds: Math.round(performance.now() - started) });
  }
}
