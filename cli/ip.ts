import type { Command } from "commander";
import { OverlayError } from "../provider/errors";
import type { Lease } from "../provider/ipam/types";
import {
  addressInput,
  DEFAULT_TTL,
  describeLease,
  findLeasePage,
  free,
  freeInput,
  ipOf,
  type Reservation,
  release,
  releaseInput,
  reserveInput,
  reserveMany,
  searchInput,
  showAddress,
  useAddress,
  useInput,
  validateOffline,
  validateToken,
} from "../provider/reservations";
import { command, parseOptions, readSecretOption, withNewPool, withPool, withSettings } from "./command";
import type { Output } from "./output";

/** `overlayctl ip`: addresses of runners and pools. */

/** Options that name a runner's subnet or any other pool. */
const withPoolOptions = (command: Command): Command =>
  command
    .option("--network <name>", "the network of the runner; needed if several have one of that name")
    .option("--runner <name>", "the runner: NAME or NETWORK/NAME")
    .option("--pool <name>", "instead of a runner: an IPPool, or any pool that `pool list` shows");

/** Options that name a pool and a value in it. */
export const withAddressOptions = (command: Command, what = "the address"): Command =>
  withPoolOptions(command).option("--ip <address>", what).option("--port <number>", "in a pool of ports: the port");

interface Token {
  token?: string;
  tokenFile?: string;
}

const withTokenFileOption = (command: Command): Command =>
  command.option(
    "--token-file <file>",
    "a file with the token, so that it is not in process lists; `-` is standard input",
  );

const withTokenOptions = (command: Command, what: string): Command =>
  withTokenFileOption(command.option("--token <token>", `${what}; \`-\` is standard input`));

/** The options with the token of `--token-file` or standard input. */
async function withTokenRead<O extends Token>({ tokenFile, ...options }: O): Promise<Omit<O, "tokenFile">> {
  const token = await readSecretOption("token", options.token, tokenFile);
  return { ...options, ...(token !== undefined && { token }) };
}

const LEASE_COLUMNS = [
  "ip",
  "ip6",
  "pool",
  "state",
  "usedBy",
  "createdAt",
  "expiresAt",
  "tenant",
  "labels",
  "owner",
] as const;

const printLeases = (out: Output, leases: Lease[]): void => out.list(leases.map(describeLease), [...LEASE_COLUMNS]);

export const reserveCommand = () =>
  withAddressOptions(
    command("reserve", "Reserve an address on a runner or in a pool, and print a token for its use."),
    "the address to get",
  )
    .option("--any-runner", "on any runner of --network")
    .option(
      "--placement <how>",
      "with --any-runner: mostFree (default), packed (the fullest with room), or spread (the fewest reservations)",
    )
    .option("--count <number>", "so many addresses at once, all or none; prints one line for each")
    .option(
      "--ttl <seconds>",
      `how long it may stay unused; default ${DEFAULT_TTL.container}, ${DEFAULT_TTL.vm} with --vm`,
    )
    .option("--vm", "for a virtual machine")
    .option("--by <name>", "the container that it is for; the same container gets the same reservation again")
    .option("--owner <name>", "instead of a container: the same owner gets the same reservation again")
    .option("--key <text>", "the same key gets the same reservation again, also if it is used by now")
    .action(
      withNewPool(async ({ context, out }, options) => {
        const input = parseOptions(reserveInput, options);
        const reservations = await reserveMany(context, input);
        for (const warning of new Set(reservations.flatMap(({ lease }) => lease.warnings ?? [])))
          out.note(`warning: ${warning}`);
        const rows = reservations.map(describeReservation);
        if (input.count === undefined) out.one(rows[0]!);
        else out.list(rows, ["ip", "ip6", "network", "runner", "pool", "state", "expiresAt", "gateway", "token"]);
      }),
    );

function describeReservation({ lease, token, gateways: [gateway, gateway6] }: Reservation) {
  return { ...describeLease(lease), gateway, gateway6, token };
}

interface ValidateOptions {
  runner?: string;
  tokenFile?: string;
  offline?: boolean;
}

export const validateCommand = () =>
  withTokenFileOption(command("validate", "Check a token and show its reservation."))
    .argument("[token]", "`-` is standard input")
    .option("--runner <name>", "the runner that the token must be for: NAME or NETWORK/NAME")
    .option("--offline", "check signature, runner and expiry with OVERLAY_TOKEN_KEYS, without the store")
    .action((word: string | undefined, options: ValidateOptions, self: Command) =>
      (options.offline ? validateWithoutStore : validateInStore)(word, options, self),
    );

const validateInStore = withPool<ValidateOptions>(async ({ context, out }, { runner, tokenFile }, word) => {
  const input = { token: await readTokenArgument(word, tokenFile), runner };
  out.one(await validateToken(context, input));
});

const validateWithoutStore = withSettings<ValidateOptions>(async (settings, out, { runner, tokenFile }, word) => {
  const input = { token: await readTokenArgument(word, tokenFile), runner };
  out.one(validateOffline(settings, input));
});

async function readTokenArgument(word: string | undefined, tokenFile: string | undefined): Promise<string> {
  const token = await readSecretOption("token", word, tokenFile);
  if (token !== undefined) return token;
  throw new OverlayError("INPUT_INVALID", "No token given.", "Pass --token-file FILE, or `-` to read standard input.");
}

export const useCommand = () =>
  withTokenOptions(
    withAddressOptions(
      command(
        "use",
        "Mark an address as used by a container, so that it does not expire. Give its token, or the address.",
      ),
    ),
    "the token that `ip reserve` printed",
  )
    .requiredOption("--by <name>", "the container that uses it; repeating the command is harmless")
    .option("--vm", "a virtual machine uses it, so `gc` does not look for a container")
    .action(
      withPool<{ token?: string }>(async ({ context, out }, options) => {
        const input = parseOptions(useInput, await withTokenRead(options));
        out.one(describeLease(await useAddress(context, input)));
      }),
    );

export const releaseCommand = () =>
  withTokenOptions(
    withPoolOptions(
      command("release", "Release an unused reservation, or all addresses of a container, and list them."),
    ),
    "the token of an unused reservation",
  )
    .option("--by <name>", "the container; with --network or --pool, only its addresses there")
    .action(
      withPool<{ token?: string }>(async ({ context, out }, options) => {
        const input = parseOptions(releaseInput, await withTokenRead(options));
        const { leases, kept } = await release(context, input);
        printLeases(out, leases);
        for (const lease of kept) out.note(`${ipOf(lease)} is no longer used, but stays reserved for ${lease.owner}.`);
        if (leases.length === 0)
          out.note(
            input.by === undefined
              ? "Nothing to release: it has ended already."
              : `${input.by} holds no address there.`,
          );
      }),
    );

export const freeCommand = () =>
  withAddressOptions(command("free", "Release an address of any holder."), "the address; its pool is found by it")
    .option("--force", "also if a Pulumi stack holds it; its next run requests it again")
    .action(
      withPool(async ({ context, out }, options) => {
        out.one(describeLease(await free(context, parseOptions(freeInput, options))));
      }),
    );

export const ipListCommand = () =>
  withPoolOptions(command("list", "List the addresses that are held, in all pools or the given ones."))
    .option("--address <address>", "only this address")
    .option("--owner <text>", "only of owners whose name contains this text")
    .option("--by <name>", "only of this container")
    .option("--label <key=value...>", "only with these labels")
    .option("--tenant <org/project>", "only of this tenant")
    .option("--state <state>", "reserved, used, offered or quarantined; default: reserved and used")
    .option("--limit <number>", "at most so many, up to 1000")
    .option("--after <cursor>", "continue after this one, as the page before says")
    .action(
      withPool<{ address?: string; label?: string[] }>(async ({ context, out }, { address, label, ...options }) => {
        const search = parseOptions(
          searchInput,
          { ...options, ip: address, labels: label },
          { ip: "address", labels: "label" },
        );
        const { leases, next } = await findLeasePage(context, search);
        printLeases(out, leases);
        if (leases.length === 0) out.note("No address is held there.");
        if (next !== undefined) out.note(`There are more: --after ${next}`);
      }),
    );

export const ipShowCommand = () =>
  withPoolOptions(command("show", "Show the holder of an address, since when and until when, and its former holders."))
    .argument("<address>")
    .action(
      withPool<object>(async ({ context, out }, options, address) => {
        const input = parseOptions(addressInput, { ...options, ip: address }, { ip: "ADDRESS" });
        const { holders, before } = await showAddress(context, input);
        for (const lease of holders) out.one({ ...describeLease(lease), since: describeLease(lease).createdAt });
        if (holders.length === 0) out.one({ ip: address, state: "free" });
        if (before.length > 0) out.say("\nbefore");
        out.list(
          before.map((holding) => ({ before: address, ...holding })),
          ["since", "until", "end", "usedBy", "owner", "pool"],
        );
      }),
    );
