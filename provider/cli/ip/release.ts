import { OverlayError } from "../../errors";
import { ipOf, releaseByContainer, releaseByToken, releaseInput } from "../../reservations";
import { command, optionsOf, withPool } from "../command";
import { listLeases, readToken, withPlace, withToken } from "./options";

export const releaseCommand = () =>
  withToken(
    withPlace(
      command("release", "Release an unused reservation, or all addresses of a container; prints what was released."),
    ),
    "the reservation, if it was not used yet",
  )
    .option("--by <name>", "the container; with --network or --pool, only its addresses there")
    .action(
      withPool<{ token?: string }>(async ({ context, out }, options) => {
        const { token, by, ...where } = optionsOf(releaseInput, await readToken(options));
        if ((token === undefined) === (by === undefined))
          throw new OverlayError("INPUT_INVALID", "Nothing to release was named.", "Give either --token or --by.");
        const { leases, kept } =
          token === undefined ? await releaseByContainer(context, by!, where) : await releaseByToken(context, token);
        listLeases(out, leases);
        for (const lease of kept) out.note(`${ipOf(lease)} is out of use, and stays reserved for ${lease.owner}.`);
        if (leases.length === 0) out.note(`${by} holds no address there.`);
      }),
    );
