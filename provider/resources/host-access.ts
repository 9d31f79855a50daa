import { z } from "zod";
import { parseNumberRange } from "../addressing/ip";
import type { HostAccess, HostPort } from "../network/plan/isolation";

const PORTS = /^(tcp|udp|sctp)\/(\d{1,5}(?:-\d{1,5})?)$/;

/** Parses `tcp/22` or `udp/6000-6100`; undefined: invalid. */
function parsePorts(text: string): HostPort | undefined {
  const [, protocol, range = ""] = PORTS.exec(text) ?? [];
  const numbers = protocol === undefined ? undefined : parseNumberRange(range);
  if (!numbers || numbers.first < 1n || numbers.last > 65535n) return undefined;
  return { protocol: protocol as HostPort["protocol"], first: Number(numbers.first), last: Number(numbers.last) };
}

const formatPorts = ({ protocol, first, last }: HostPort): string =>
  `${protocol}/${first === last ? first : `${first}-${last}`}`;

/** Normalized, so that equivalent texts are no change. */
export const hostAccess = z.union(
  [
    z.enum(["ping", "all"]),
    z
      .array(
        z.string().refine((text) => parsePorts(text) !== undefined, {
          message: "must be PROTOCOL/PORT or PROTOCOL/FIRST-LAST, with tcp, udp or sctp and ports from 1 to 65535",
          abort: true,
        }),
      )
      .transform((texts) => [...new Set(texts.map((text) => formatPorts(parsePorts(text)!)))].sort()),
  ],
  "must be ping, all, or a list of ports such as tcp/22",
);

/** States of releases before this setting have none. */
export const parseHostAccess = (given: z.output<typeof hostAccess> | undefined = "ping"): HostAccess =>
  typeof given === "string" ? given : given.map((text) => parsePorts(text)!);
