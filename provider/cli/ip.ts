import type { Command } from "commander";
import { OverlayError } from "../errors";
import type { Lease } from "../pool/types";
import {
  addressInput,
  DEFAULT_TTL,
  describeLease,
  findLeases,
  free,
  freeInput,
  ipOf,
  releaseByContainer,
  releaseByToken,
  releaseInput,
  reserve,
  reserveInput,
  searchInput,
  showAddress,
  useByAddress,
  useByAddressInput,
  useByToken,
  useByTokenInput,
  validateToken,
} from "../reservations";
import { command, parseOptions, readSecretOption, withPool } from "./command";
import type { Output } from "./output";

/** What the commands on addresses have in common. */

/** A runner's subnet, or any other pool. */
export const withPoolOptions = (command: Command): Command =>
  command
    .option("--network <name>", "the network of the runner")
    .option("--runner <name>", "the runner")
    .option("--pool <name>", "instead of a runner: an IPPool, or any pool that `pool list` shows");

/** A place and a value in it. */
export const withAddressOptions = (command: Command, what = "the address"): Command =>
  withPoolOptions(command).option("--ip <address>", what).option("--port <number>", "in a pool of ports: the port");

interface Token {
  token?: string;
  tokenFile?: string;
}

export const withTokenFileOption = (command: Command): Command =>
  command.option(
    "--token-file <file>",
    "a file with the token, which keeps it out of process lists; `-` is standard input",
  );

export const withTokenOptions = (command: Command, what: string): Command =>
  withTokenFileOption(command.option("--token <token>", `${what}; \`-\` is standard input`));

/** The same options, with the token itself in them. */
export async function withTokenRead<O extends Token>({ tokenFile, ...options }: O): Promise<Omit<O, "tokenFile">> {
  const token = await readSecretOption("token", options.token, tokenFile);
  return { ...options, ...(token !== undefined && { token }) };
}

export const LEASE_COLUMNS = [
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

export const printLeases = (out: Output, leases: Lease[]): void =>
  out.list(leases.map(describeLease), [...LEASE_COLUMNS]);

export const reserveCommand = () =>
  withAddressOptions(
    command("reserve", "Reserve an address on a runner or in a pool, and get a token to use it with."),
    "exactly this one",
  )
    .option(
      "--ttl <seconds>",
      `how long it may stay unused; default ${DEFAULT_TTL.container}, ${DEFAULT_TTL.vm} with --vm`,
    )
    .option("--vm", "for a virtual machine")
    .option("--by <name>", "the container it is for: asking again gives the same reservation")
    .action(
      withPool(async ({ context, out }, options) => {
        const { lease, token, gateways } = await reserve(context, parseOptions(reserveInput, options));
        for (const warning of lease.warnings ?? []) out.note(`warning: ${warning}`);
        const [gateway, gateway6] = gateways;
        out.one({ ...describeLease(lease), gateway, gateway6, token });
      }),
    );

export const validateCommand = () =>
  withTokenFileOption(command("validate", "Say what a token is good for, if it is."))
    .argument("[token]", "`-` is standard input")
    .option("--runner <name>", "it must be for this runner: NAME or NETWORK/NAME")
    .action(
      withPool<{ runner?: string; tokenFile?: string }>(async ({ context, out }, { runner, tokenFile }, word) => {
        const token = await readSecretOption("token", word, tokenFile);
        if (token === undefined)
          throw new OverlayError(
            "INPUT_INVALID",
            "No token given.",
            "Pass --token-file FILE, or `-` to read standard input.",
          );
        out.one(describeLease(await validateToken(context, token, runner)));
      }),
    );

export const useCommand = () =>
  withTokenOptions(
    withAddressOptions(
      command("use", "Mark an address as used by a container, so that it does not expire: by its token, or by itself."),
    ),
    "what `ip reserve` gave",
  )
    .requiredOption("--by <name>", "the container that uses it; it may ask again")
    .option("--vm", "a virtual machine uses it: `gc` looks for no container")
    .action(
      withPool<{ token?: string }>(async ({ context, out }, given) => {
        const options = await withTokenRead(given);
        const lease =
          options.token === undefined
            ? await useByAddress(context, parseOptions(useByAddressInput, options))
            : await useByToken(context, parseOptions(useByTokenInput, options));
        out.one(describeLease(lease));
      }),
    );

export const releaseCommand = () =>
  withTokenOptions(
    withPoolOptions(
      command("release", "Release an unused reservation, or all addresses of a container; prints what was released."),
    ),
    "the reservation, if it was not used yet",
  )
    .option("--by <name>", "the container; with --network or --pool, only its addresses there")
    .action(
      withPool<{ token?: string }>(async ({ context, out }, options) => {
        const { token, by, ...where } = parseOptions(releaseInput, await withTokenRead(options));
        if ((token === undefined) === (by === undefined))
          throw new OverlayError("INPUT_INVALID", "Nothing to release was named.", "Give either --token or --by.");
        const { leases, kept } =
          token === undefined ? await releaseByContainer(context, by!, where) : await releaseByToken(context, token);
        printLeases(out, leases);
        for (const lease of kept) out.note(`${ipOf(lease)} is out of use, and stays reserved for ${lease.owner}.`);
        if (leases.length === 0) out.note(`${by} holds no address there.`);
      }),
    );

export const freeCommand = () =>
  withAddressOptions(command("free", "Take an address back from its holder."), "the address; its pool follows from it")
    .option("--force", "also from a Pulumi stack, which asks for it again at its next run")
    .action(
      withPool(async ({ context, out }, options) => {
        out.one(describeLease(await free(context, parseOptions(freeInput, options))));
      }),
    );

export const ipListCommand = () =>
  withPoolOptions(command("list", "List the addresses that are held, in all pools or those that are asked for."))
    .option("--address <address>", "only this address")
    .option("--owner <text>", "only of owners whose name has this text")
    .option("--by <name>", "only of this container")
    .option("--label <key=value...>", "only with these labels")
    .option("--tenant <org/project>", "only of this tenant")
    .option("--state <state>", "reserved, used, offered or quarantined; default: reserved and used")
    .action(
      withPool<{ address?: string; label?: string[] }>(async ({ pool, out }, { address, label, ...options }) => {
        const search = parseOptions(
          searchInput,
          { ...options, ip: address, labels: label },
          { ip: "address", labels: "label" },
        );
        const found = await findLeases(pool, search);
        printLeases(out, found);
        if (found.length === 0) out.note("No address is held there.");
      }),
    );

export const ipShowCommand = () =>
  withPoolOptions(command("show", "Show who holds an address, since when and until when, and who had it before."))
    .argument("<address>")
    .action(
      withPool<object>(async ({ pool, out }, options, address) => {
        const input = parseOptions(addressInput, { ...options, ip: address }, { ip: "ADDRESS" });
        const { holders, before } = await showAddress(pool, input);
        for (const lease of holders) out.one({ ...describeLease(lease), since: describeLease(lease).createdAt });
        if (holders.length === 0) out.one({ ip: address, state: "free" });
        if (before.length > 0) out.say("\nbefore");
        out.list(
          before.map((holding) => ({ before: address, ...holding })),
          ["since", "until", "end", "usedBy", "owner", "pool"],
        );
      }),
    );
