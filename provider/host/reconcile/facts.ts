import { isOverlayError, OverlayError } from "../../errors";
import type { Facts } from "../../network/model/facts";
import type { DesiredState } from "../../network/model/items";
import { FACTS_SCRIPT, inspectScript, parseFacts } from "../../network/read/facts";
import type { CommandResult, Host } from "../connection";
import { busyboxTool } from "../ssh/shell-errors";

/** What a host answered: facts, or an error that names the host. */

/** Reads a host without its lock; changes nothing. */
export const readHostFacts = async (host: Host, states: DesiredState[] = []): Promise<Facts> =>
  parseHostFacts(host, await host.exec(inspectScript(states)));

export function parseHostFacts(host: Host, { code, stdout, stderr }: CommandResult): Facts {
  if (code === 127) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      `${host.name} has no '${stderr.trim().split("\n").at(-1)}'.`,
      "Install it there (Debian: apt-get install iproute2 iptables coreutils).",
    );
  }
  if (code !== 0) throw commandFailed(host, String(code), stderr, FACTS_SCRIPT, []);
  return namingHost(host, () => parseFacts(stdout));
}

export function commandFailed(host: Host, code: string, stderr: string, script: string, left: string[]): OverlayError {
  const busybox = busyboxTool(host.name, stderr);
  if (busybox) return busybox;
  const [, number] = /Command failed -:(\d+)/.exec(stderr) ?? [];
  const batch = /^ip -force -batch - <<'END'.*\n([\s\S]*?)\nEND$/m.exec(script)?.[1]?.split("\n") ?? [];
  const command = number ? `'ip ${batch[Number(number) - 1]}'` : "a command";
  const said = stderr.trim().split("\n").slice(0, 4).join("; ") || "no message";
  const stands = left.length > 0 ? ` Now: ${left.slice(0, 5).join("; ")}.` : "";
  return new OverlayError(
    "HOST_COMMAND_FAILED",
    `${host.name}: ${command} failed (exit code ${code}): ${said}.${stands}`,
    "Fix the cause and run up again; it continues from the present state.",
  );
}

/** Runs `look`. An error about what is on a machine names the machine. */
export function namingHost<T>(host: Pick<Host, "name">, look: () => T): T {
  try {
    return look();
  } catch (error) {
    throw isOverlayError(error) ? withHostName(host, error) : error;
  }
}

export const withHostName = ({ name }: Pick<Host, "name">, error: OverlayError): OverlayError =>
  new OverlayError(error.code, `${name}: ${error.what}`, error.fix, error);
