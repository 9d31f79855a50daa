import { execFileSync } from "node:child_process";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { giveTo, newFolder } from "./process";

export interface Certificate {
  cert: string;
  key: string;
}

export interface Authority {
  folder: string;
  ca: string;
  /** `names` as in `DNS:localhost,IP:127.0.0.1`. */
  issue(name: string, names: string): Certificate;
}

/** A certificate authority for a day, made with openssl; `user` runs the server with its certificates. */
export function newAuthority(user?: string): Authority {
  const folder = newFolder("memory", user);
  chmodSync(folder, 0o755);
  const file = (name: string) => join(folder, name);
  const openssl = (...args: string[]) => execFileSync("openssl", args, { stdio: "ignore" });
  const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl(
    "req",
    "-x509",
    ...newKey,
    "-keyout",
    file("ca.key"),
    "-out",
    file("ca.pem"),
    "-days",
    "1",
    "-subj",
    "/CN=ca",
  );
  return {
    folder,
    ca: file("ca.pem"),
    issue: (name, names) => {
      const [key, cert, request] = [file(`${name}.key`), file(`${name}.pem`), file(`${name}.csr`)];
      writeFileSync(file(`${name}.ext`), `subjectAltName=${names}`);
      openssl("req", ...newKey, "-keyout", key, "-out", request, "-subj", `/CN=${name}`);
      const signing = ["-CA", file("ca.pem"), "-CAkey", file("ca.key"), "-CAcreateserial", "-days", "1"];
      openssl("x509", "-req", "-in", request, "-out", cert, ...signing, "-extfile", file(`${name}.ext`));
      giveTo(key, user);
      return { cert, key };
    },
  };
}
