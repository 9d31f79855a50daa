import { join } from "node:path";
import { Client, credentials, Metadata, type ServiceDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { Cluster } from "../../../provider/ipam/store/etcd/url";

const definitions = loadSync(join(__dirname, "etcd-admin.proto"), { keepCase: true, longs: String, enums: String });

/** Administration of a cluster, at one member: alarms, status, users, compaction. */
export class EtcdAdmin {
  readonly #client: Client;

  constructor(address: string, tls: Cluster["tls"]) {
    const security = tls
      ? credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.cert ?? null)
      : credentials.createInsecure();
    this.#client = new Client(address, security, { "grpc.max_reconnect_backoff_ms": 500 });
  }

  compact(revision: string): Promise<unknown> {
    return this.#call("KV", "Compact", { revision });
  }

  setSpaceAlarm(action: "ACTIVATE" | "DEACTIVATE"): Promise<unknown> {
    return this.#call("Maintenance", "Alarm", { action, alarm: "NOSPACE" });
  }

  async isLeader(): Promise<boolean> {
    const { leader, header } = (await this.#call("Maintenance", "Status", {})) as {
      leader: string;
      header: { member_id: string };
    };
    return leader === header.member_id;
  }

  /** With a role of the same name; `permission` is for keys under `prefix`. */
  async addUser(name: string, password: string, prefix: string, permission?: "READ" | "READWRITE"): Promise<void> {
    await this.#call("Auth", "UserAdd", { name, password });
    await this.#call("Auth", "RoleAdd", { name });
    const [key, range_end] = [Buffer.from(`${prefix}/`), Buffer.from(`${prefix}0`)];
    const perm = { permType: permission, key, range_end };
    if (permission) await this.#call("Auth", "RoleGrantPermission", { name, perm });
    await this.#call("Auth", "UserGrantRole", { user: name, role: name });
  }

  enableAuth(): Promise<unknown> {
    return this.#call("Auth", "AuthEnable", {});
  }

  close(): void {
    this.#client.close();
  }

  #call(service: string, method: string, request: object): Promise<object> {
    const { path, requestSerialize, responseDeserialize } = (
      definitions[`etcdserverpb.${service}`] as ServiceDefinition
    )[method]!;
    const options = { deadline: Date.now() + 2000 };
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        new Metadata(),
        options,
        (error, response) => (error ? reject(error) : resolve(response as object)),
      );
    });
  }
}
