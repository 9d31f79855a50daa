import type { SecureContextOptions } from "node:tls";
import { ServerCredentials } from "@grpc/grpc-js";

/** TLS whose certificates can be exchanged while the server runs: new connections get the new ones. */
export class TlsCredentials extends ServerCredentials {
  /** With `ca`, only clients with a certificate of these authorities are accepted. */
  constructor(options: SecureContextOptions) {
    const isMutual = options.ca !== undefined;
    super({ requestCert: isMutual, rejectUnauthorized: isMutual }, options);
  }

  update(options: SecureContextOptions): void {
    this.updateSecureContextOptions(options);
  }

  override _equals(other: ServerCredentials): boolean {
    return this === other;
  }
}
