import type { Connection } from "../../provider/host/connection";
import { Reconciler } from "../../provider/host/reconcile/reconciler";
import type { ConversationReport } from "../../provider/host/reconcile/requests";
import { openHosts } from "../../provider/host/ssh/hosts";
import type { Item } from "../../provider/network/model/items";

/** Runs in a lab's controller, from where SSH reaches the hosts: applies items to one of them and prints the result. */
export interface Request {
  connection: Connection;
  knownHosts: string;
  items: Item[];
  revertAfter: number;
}

export interface Answer {
  steps: number;
  connections: number;
  error?: string;
}

async function main(request: Request): Promise<Answer> {
  const settings = { connectTimeout: 5, operationTimeout: 60, parallelHosts: 1, knownHosts: [request.knownHosts] };
  const hosts = openHosts(settings);
  let reported!: (report: ConversationReport) => void;
  const report = new Promise<ConversationReport>((resolve) => {
    reported = resolve;
  });
  const reconciler = new Reconciler(reported, { revertAfter: request.revertAfter });
  const host = await hosts.connect(request.connection);
  const record = { uid: "u", owner: "test", network: "training", store: "s" };
  const work = {
    record,
    items: request.items,
    persist: true,
    fence: async () => {},
    isLeaseGone: async () => false,
    ownersHere: async () => [],
  };
  const error = await reconciler.apply(host, work).then(
    () => undefined,
    (error: Error) => error.message,
  );
  const { steps } = await report;
  const { connections } = hosts.stats()[host.name]!;
  return { steps, connections, ...(error !== undefined && { error }) };
}

main(JSON.parse(process.argv[2]!) as Request).then((answer) => {
  console.log(JSON.stringify(answer));
  process.exit(0); // a connection that hangs is not waited for
});
