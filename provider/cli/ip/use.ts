import { OverlayError } from "../../errors";
import type { Lease } from "../../pool";
import { address, command, plainName, type Session, withPool } from "../command";
import { ipOf, isOf, isOfVm, reserve, userNameIn, view, vmLabel } from "./reservation";
import { runnerNamed } from "./runner";
import { unused } from "./tokens";

interface Options {
  token?: string;
  network?: string;
  runner?: string;
  ip?: bigint;
  by: string;
  vm?: boolean;
}

/** From now on it does not expire. */
export const useCommand = () =>
  command("use", "Mark an address as used by a container: the one of a token, or one by its name.")
    .option("--token <token>", "what `ip reserve` gave")
    .option("--network <name>", "the network")
    .option("--runner <name>", "the runner")
    .option("--ip <address>", "the address", address)
    .requiredOption("--by <name>", "who uses it", plainName)
    .option("--vm", "a virtual machine uses it: `gc` looks for no container")
    .action(
      withPool<Options>(async (session, options) => {
        const lease =
          options.token === undefined
            ? await usedByName(session, options)
            : await used(session, await unused(session, options.token, options.runner), options);
        session.out.one(view(lease));
      }),
    );

function used({ pool }: Session, lease: Lease, { by, vm }: Options): Promise<Lease> {
  const names = [...new Set([...(lease.names ?? []), userNameIn(lease, by)])];
  const labels = { ...lease.labels, ...vmLabel(vm) };
  return pool.amend(lease.pool, lease.leaseId, { state: "used", usedBy: by, names, labels });
}

/** A free address, or one that was reserved for the same container. */
async function usedByName(session: Session, options: Options): Promise<Lease> {
  const { network, runner: name, ip, by, vm } = options;
  if (network === undefined || name === undefined || ip === undefined) {
    throw new OverlayError(
      "INPUT_INVALID",
      "It is not said which address.",
      "Give --token, or --network, --runner and --ip.",
    );
  }
  const runner = await runnerNamed(session.pool, network, name);
  const lease = await session.pool.find(runner.pool, { value: ip });
  if (!lease) return reserve(session.pool, runner, { ip, by, usedBy: by, ...(vm && { vm }) });
  if (lease.usedBy === by && (!vm || isOfVm(lease))) return lease;
  if (lease.usedBy === by || (lease.state === "reserved" && isOf(lease, by))) return used(session, lease, options);
  const holder = lease.usedBy ?? lease.owner;
  throw new OverlayError(
    "IP_IN_USE",
    `${ipOf(lease)} is ${lease.state} by ${holder}.`,
    "Use its token, or another address.",
  );
}
