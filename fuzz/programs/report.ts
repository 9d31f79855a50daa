import { renderTypeScript } from "./program";
import type { FuzzStep } from "./session";

/** The steps as programs and commands, for a person to read and run. */
export function renderReproduction(steps: FuzzStep[]): string {
  const printed = new Map<number, string>();
  return steps
    .map((step, i) => {
      const text = renderTypeScript(step.program);
      const isKnown = printed.get(step.stack) === text;
      printed.set(step.stack, text);
      const program = isKnown ? [] : [`// program of s${step.stack}`, text];
      return [...program, ...commandsOf(step).map((command) => `$ ${command}`), ""]
        .map((line) => (line ? line : ""))
        .join("\n")
        .replace(/^/, i === 0 ? "" : "\n");
    })
    .join("");
}

function commandsOf(step: FuzzStep): string[] {
  const stack = `--stack s${step.stack}`;
  const preview = `pulumi preview ${stack}`;
  const up = `pulumi up --yes --skip-preview ${stack}`;
  if (step.act === "preview") return step.expires ? [`OVERLAY_OFFER_TTL=1 ${preview}`, "sleep 1"] : [preview];
  const { kill } = step;
  const target = kill && { cli: "the CLI", provider: "the provider", both: "the CLI and the provider" }[kill.target];
  const killed = kill && `# kill -9 of ${target} ${kill.milliseconds} ms after ${kill.afterChanges} changes`;
  if (step.act === "destroy")
    return [
      `pulumi destroy --yes --skip-preview ${stack}`,
      ...(killed ? [killed, `pulumi cancel --yes ${stack}`, up] : []),
    ];
  return [...(step.previewFirst ? [preview] : []), up, ...(killed ? [killed, `pulumi cancel --yes ${stack}`, up] : [])];
}
