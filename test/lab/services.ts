import type { Lab, ProcessResult } from "../../lab/lab";

/** Real services and clients for a lab: each answers one line, `NAME sees CLIENT`. */
export type Protocol = "tcp" | "udp" | "sctp";

const KINDS: Record<Protocol, string> = {
  tcp: "socket.SOCK_STREAM, socket.IPPROTO_TCP",
  udp: "socket.SOCK_DGRAM, socket.IPPROTO_UDP",
  sctp: "socket.SOCK_STREAM, socket.IPPROTO_SCTP",
};

/** Listens on both families, and shows an IPv4 client without the prefix that IPv6 gives it. */
const server = (protocol: Protocol, port: number, name: string): string => `
import socket
s = socket.socket(socket.AF_INET6, ${KINDS[protocol]})
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind(("::", ${port}))
answer = lambda peer: ("${name} sees " + peer[0].replace("::ffff:", "")).encode()
if ${protocol === "udp" ? "True" : "False"}:
    while True:
        peer = s.recvfrom(100)[1]
        s.sendto(answer(peer), peer)
s.listen(50)
while True:
    c, peer = s.accept()
    c.sendall(answer(peer))
    c.close()
`;

const client = (protocol: Protocol, ip: string, port: number, from: number): string => `
import socket
s = socket.socket(socket.AF_INET6 if ":" in "${ip}" else socket.AF_INET, ${KINDS[protocol]})
s.settimeout(3)
s.bind(("", ${from}))
s.connect(("${ip}", ${port}))
s.send(b"?") if ${protocol === "udp" ? "True" : "False"} else None
print(s.recv(100).decode())
`;

const python = (script: string): string => `/usr/bin/python3 -c '${script}'`;

/** In a container of the host, or on the host itself. Returns once it listens. */
export async function serve(lab: Lab, host: string, inside: string, protocol: Protocol, port: number, name: string) {
  const enter = inside ? `ip netns exec ${inside} ` : "";
  const start = `${enter}setsid ${python(server(protocol, port, name))} >/run/service-${name}.log 2>&1 </dev/null &`;
  const listening = `${enter}ss -Hln --${protocol} 'sport = :${port}' | grep -q .`;
  const script = `${start}\nfor i in $(seq 100); do ${listening} && exit 0; sleep 0.1; done; cat /run/service-${name}.log >&2; exit 1`;
  const { code, stderr } = await lab.exec(host, script);
  if (code !== 0) throw new Error(`service ${name} on ${host}: ${stderr.trim()}`);
}

export interface Client {
  /** A host, or the controller, which is outside of the overlay, on the underlay. */
  at: string;
  /** A container of that host. */
  inside?: string;
}

/** The answer that the client gets, or the last line of its error. `from`: its own port. */
export async function ask(
  lab: Lab,
  { at, inside }: Client,
  ip: string,
  port: number,
  protocol: Protocol = "tcp",
  from = 0,
): Promise<string> {
  const command = python(client(protocol, ip, port, from));
  const script = inside ? `ip netns exec ${inside} ${command}` : command;
  const result: ProcessResult =
    at === "controller" ? await lab.controller("sh", ["-c", script]) : await lab.exec(at, script);
  return result.stdout.trim() || (result.stderr.trim().split("\n").at(-1) ?? "");
}

/** Whether this machine's kernel supports SCTP. */
export async function hasSctp(lab: Lab): Promise<boolean> {
  const probe = python("import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)");
  return (await lab.controller("sh", ["-c", probe])).code === 0;
}
