/** Every error code, in one place: its category, its meaning and its remedy. docs/errors.md and `overlayctl explain` are made from it. */

/** What kind of failure an error is. Interfaces map it to their own status: HTTP in service/problem.ts. */
export type Category =
  | "invalid"
  | "unauthenticated"
  | "forbidden"
  | "notFound"
  | "conflict"
  | "exhausted"
  | "gone"
  | "rateLimited"
  | "hostFailed"
  | "unavailable"
  | "internal";

export interface ErrorCode {
  category: Category;
  /** When it occurs, in a sentence or two. */
  meaning: string;
  /** What to do about it, for all cases; each error says it for its own. */
  remedy: string;
}

const code = <C extends Category>(category: C, meaning: string, remedy: string) => ({ category, meaning, remedy });

/** By what they are about, as docs/errors.md has them. */
export const ERROR_GROUPS = {
  "Inputs and settings": {
    SUBNET_FORMAT: code(
      "invalid",
      "A layout is not of the form BASE/PREFIX/NODE_BITS/SUBNET_BITS, or an address is not an IP address.",
      "Write it like `10.128.0.0/12/6/14`. `overlayctl layout CONFIG` shows the subnets of a layout.",
    ),
    SUBNET_BITS: code(
      "invalid",
      "PREFIX, NODE_BITS and SUBNET_BITS of a layout do not add up to the width of an address, 32 or 128.",
      "Change one of the three so that the sum is right.",
    ),
    SUBNET_RANGE: code(
      "invalid",
      "A part of a layout is too small or too large, its range has addresses that cannot be used (loopback, multicast, link-local), or a runner id is larger than NODE_BITS allows.",
      "Choose a range in 10.0.0.0/8 or fd00::/8 with enough NODE_BITS for the number of runners.",
    ),
    SUBNET_NOT_ALIGNED: code(
      "invalid",
      "The base of a layout is not the first address of its prefix.",
      "Use the base that the error proposes.",
    ),
    INPUT_INVALID: code(
      "invalid",
      "An input of a resource, an option of a command or a parameter of a request is missing, misspelt, of the wrong type, or does not fit the others.",
      "The error names the input, the given value and what is allowed. resources.md and `--help` list all inputs and options.",
    ),
    SETTING_INVALID: code(
      "internal",
      "A setting (`overlay:KEY`, `OVERLAY_KEY`) has an invalid value, does not exist, or is required and missing.",
      "Correct it with `pulumi config set overlay:KEY VALUE`, or in the environment.",
    ),
  },
  Pools: {
    POOL_NOT_FOUND: code(
      "notFound",
      "The store has no pool, network or runner of this name.",
      "Check the name and the store (`overlay:store`, `OVERLAY_STORE`); `overlayctl pool list` shows what there is. If another stack creates it, run `up` there first.",
    ),
    POOL_EXHAUSTED: code(
      "exhausted",
      "No value is free in the pool: all are held, offered or in quarantine.",
      "Release what is not needed (`overlayctl ip list`, `overlayctl gc`), wait for the quarantine, or enlarge the pool.",
    ),
    POOL_OVERLAP: code(
      "conflict",
      "The ranges of a new pool or network overlap those of another one in the same address space, or a pool of this name exists with other settings.",
      "Choose another range, name or `addressSpace`. Ranges that only a preview reserved are free after `overlay:offerTtl` seconds.",
    ),
    POOL_IN_USE: code(
      "conflict",
      "A pool, network or runner cannot be removed or replaced, because leases in it are held.",
      "Remove what holds them first; the error names the holders. `overlayctl ip free` releases single addresses.",
    ),
    POOL_QUOTA: code(
      "exhausted",
      "The lease would exceed the quota of the pool.",
      "Release leases of the pool, or raise its `quota`.",
    ),
    TENANT_MISMATCH: code(
      "forbidden",
      "The pool, lease or access token belongs to another tenant.",
      "Use a pool of your own tenant, or set `tenant` (`overlay:tenant`, `OVERLAY_TENANT`) to the right one.",
    ),
  },
  "Addresses and leases": {
    IP_IN_USE: code(
      "conflict",
      "The requested address is held by another owner, or a host already has it without a record of ours.",
      "Request another address, or release that one first: `overlayctl ip show ADDRESS` names its holder.",
    ),
    IP_RESERVED: code(
      "conflict",
      "The requested address is one that the pool never gives out, such as a gateway or an excluded address.",
      "Request another address.",
    ),
    IP_OUTSIDE_POOL: code(
      "invalid",
      "The requested address is in no range of the pool, or in no pool at all.",
      "Request an address in the ranges that `overlayctl pool list` shows.",
    ),
    IP_NOT_REQUESTED: code(
      "invalid",
      "The pool gives out only values that are requested explicitly, and none was.",
      "Set the address or port that you need.",
    ),
    EVENTS_LOST: code(
      "gone",
      "The events after the given one are no longer kept, or an older backup of the store was restored.",
      "List all leases again, and follow the events after the one that the error names.",
    ),
    LEASE_NOT_FOUND: code(
      "notFound",
      "The address or port is not held by anyone.",
      "`overlayctl ip list` shows what is held.",
    ),
    LEASE_EXPIRED: code("gone", "The lease has ended by its TTL.", "Reserve again, or run `up` again."),
    LEASE_FENCED: code(
      "conflict",
      "Another run has taken over the lease since this one read it. Nothing was changed by this run.",
      "Run `up` again. Do not deploy one stack from two places at once.",
    ),
    LEASE_CHANGED: code(
      "conflict",
      "The lease was changed by another process between reading and writing. Nothing was changed.",
      "Read it again, and repeat the request if it is still wanted.",
    ),
    RESERVATION_EXISTS: code(
      "conflict",
      "The container, owner or idempotency key already has a reservation, which is not the one that is requested.",
      "Release that reservation first, or use another container, owner or key.",
    ),
    PLAN_STALE: code(
      "conflict",
      "What the preview has shown cannot be had any more: another owner holds it now, or a host has changed.",
      "Run `preview` again, look at what it shows now, and run `up`.",
    ),
    PLAN_INCOMPLETE: code(
      "conflict",
      "`overlayctl plan` has printed what it knows, but `up` also does what only `up` can know: on hosts or with values that are not known yet, or in steps that depend on each other.",
      "The error names what is missing, with resources and hosts. Give hosts with `--hub` and `--runner`; the rest is seen in `up`.",
    ),
  },
  "Tokens of reservations": {
    TOKEN_FORMAT: code(
      "invalid",
      "The token of a reservation is truncated, extended, or not a token.",
      "Pass it exactly as it was given out.",
    ),
    TOKEN_KEYS_MISSING: code(
      "invalid",
      "A token is to be validated without the store, and the keys of tokens are only in the store.",
      "Set `tokenKeys` (`OVERLAY_TOKEN_KEYS`) there, or validate with the store.",
    ),
    TOKEN_SIGNATURE: code(
      "forbidden",
      "The signature of the token is wrong, or made with a key that is not in the key ring.",
      "Reserve again. After a rotation of keys, keep the old key in `tokenKeys` until its tokens have expired.",
    ),
    TOKEN_EXPIRED: code("gone", "The token has expired.", "Reserve again, with a longer `ttl` if needed."),
    TOKEN_RUNNER: code("forbidden", "The token is for another runner.", "Use it on the runner that the error names."),
    TOKEN_USED: code(
      "conflict",
      "The reservation of the token is used by another container, was released, or was given out again.",
      "Reserve again.",
    ),
  },
  "Ports, ids and names": {
    PORT_CONFLICT: code(
      "conflict",
      "A port is held by another owner, or two resources forward the same port of a shared address.",
      "Choose another port. To move a port between resources of one stack, remove it in one `up` and add it in the next.",
    ),
    SHARING_CONFLICT: code(
      "conflict",
      "Resources share an address but not its sharing key, tenant or host.",
      "Give all of them the same `sharingKey` and `attach`, or use another address.",
    ),
    RUNNER_IDS_EXHAUSTED: code(
      "exhausted",
      "The network has as many runners as its layout has room for.",
      "Remove a runner, or make a network with more NODE_BITS.",
    ),
    RUNNER_ID_TAKEN: code(
      "conflict",
      "Another runner of the network has the requested `runnerId`.",
      "Leave out `runnerId`, or choose a free one: `overlayctl topology NETWORK` lists the runners.",
    ),
    RUNNER_NAME_TAKEN: code("conflict", "The network has another runner of this name.", "Set another `runnerName`."),
    NETWORK_EXISTS: code(
      "conflict",
      "A network of this name exists already, or another network uses the same VNIs and port on the hub.",
      "Set another `networkName`, `vniBase` or `vxlanPort`; or refer to the existing network by its name.",
    ),
  },
  "Hosts: objects of other programs": {
    DEVICE_FOREIGN: code(
      "hostFailed",
      "A device with a name, or with the VNI and port, that one of ours needs belongs to another program or resource.",
      "Choose other names (`devicePrefix`, `bridgeName`, `hubInterface`), remove that device, or set `adopt` if it is yours.",
    ),
    KEY_DUPLICATE: code(
      "hostFailed",
      "Two hosts of a network have the same WireGuard key: one of their disks is a copy of the other.",
      "Remove the key on the copied host (`rm /var/lib/overlay/NETWORK/tunnel.key`), and run up again.",
    ),
    FILE_FOREIGN: code(
      "hostFailed",
      "A file that would be written exists with another content, and is not ours.",
      "Move or remove that file.",
    ),
    ROUTE_OVERLAP: code(
      "hostFailed",
      "A route, a Docker network, or an address that SSH or a tunnel uses is in the range of the network.",
      "Remove that route or Docker network, or give the network another range (`subnets`).",
    ),
    RULE_FOREIGN: code(
      "hostFailed",
      "A chain of ours is to be removed, and rules of other programs are in it or jump to it.",
      "Remove these rules with the commands in the error.",
    ),
  },
  "Hosts: connections and changes": {
    SSH_UNREACHABLE: code(
      "hostFailed",
      "The host does not answer over SSH, or has no SSH algorithm in common.",
      "Check address, port, sshd and firewalls. For a host that is still booting set `dialErrorLimit: 0`; to destroy without it see `overlay:unreachableOnDelete`.",
    ),
    SSH_AUTH: code(
      "hostFailed",
      "A private key cannot be read, or the host accepts none of the given keys and passwords.",
      "Check `user`, `privateKey`, `privateKeyPath` and `privateKeyPassword`; the public key must be in authorized_keys of that user.",
    ),
    SSH_HOST_KEY: code(
      "hostFailed",
      "The host key is unknown, has changed, or is revoked.",
      "Compare the fingerprint on the host, then add the line of the error to known_hosts, or set `hostKey`.",
    ),
    SSH_SUDO: code(
      "hostFailed",
      "The user cannot become root without a password.",
      "Put `USER ALL=(root) NOPASSWD: ALL` into /etc/sudoers.d/overlay on that host, or connect as root.",
    ),
    SSH_CUT: code(
      "hostFailed",
      "After a change, no new SSH connection to the host was possible. The host reverts the change by itself.",
      "Reach the host by an address that the overlay does not affect.",
    ),
    HOST_TIMEOUT: code(
      "hostFailed",
      "A command on the host did not finish in time.",
      "Look for what hangs there, or raise `overlay:operationTimeout`.",
    ),
    HOST_LOCKED: code(
      "hostFailed",
      "Another run works on the host.",
      "Wait for that run. The lock of a run that died is released after its `operationTimeout`.",
    ),
    HOST_TOOL_MISSING: code(
      "hostFailed",
      "A program or a kernel module that the overlay needs is missing on the host.",
      "Install it; requirements.md lists all, and `overlayctl scan --check HOST` shows which are missing.",
    ),
    HOST_COMMAND_FAILED: code(
      "hostFailed",
      "A command on the host failed, or its output is not that of the expected program.",
      "Correct the cause that the error shows, and run `up` again: it continues from the present state.",
    ),
    RECORD_LOST: code(
      "hostFailed",
      "The record of a resource is missing on a host, and objects there may be ours but cannot be proven to be.",
      "Run `pulumi up --refresh` of the stacks that use the host, or remove the objects with the commands in the error.",
    ),
    FIREWALL_BLOCKED: code(
      "hostFailed",
      "Another firewall on the host drops packets of the tunnel or of the overlay.",
      "Let them pass there: the error names the chain and the command.",
    ),
    DOCKER_UNAVAILABLE: code(
      "hostFailed",
      "Docker is needed and not installed, or does not answer.",
      "Start Docker there, or set `docker.enabled` to `auto` or `off`.",
    ),
    DOCKER_NETWORK_FOREIGN: code(
      "hostFailed",
      "A Docker network of this name exists, and is not ours.",
      "Choose another `docker.networkName`, remove that network, or set `adopt` if it is yours.",
    ),
    DOCKER_NETWORK_IN_USE: code(
      "hostFailed",
      "The Docker network must be created again or removed, and containers use it.",
      "Remove these containers, or disconnect them from the network.",
    ),
    MTU_TOO_SMALL: code(
      "hostFailed",
      "The MTU inside the overlay would be less than 576, or than 1280 with IPv6.",
      "Raise the MTU of the underlay, or `mtu`.",
    ),
    MTU_TOO_LARGE: code(
      "hostFailed",
      "`mtu` and the bytes that the tunnel adds exceed the MTU of the underlay: large packets would be fragmented or lost. VXLAN adds 50 over IPv4 and 70 over IPv6, WireGuard 60 and 80.",
      "Set `mtu` to the value in the error or less, or to `auto`.",
    ),
    VERIFY_FAILED: code(
      "hostFailed",
      "Everything is configured, but packets do not get through the overlay.",
      "Run `overlayctl verify`, which names the hop that fails. Usual causes are a firewall that drops UDP between the hosts, and a smaller MTU on the way.",
    ),
  },
  Store: {
    STORE_UNAVAILABLE: code(
      "unavailable",
      "The store does not exist, does not answer, or refuses the login.",
      "Check the URL (`overlay:store`, `OVERLAY_STORE`), the login, the server and the network.",
    ),
    STORE_READ_ONLY: code(
      "unavailable",
      "The store takes no writes: a read-only file, a replica, a full server, or a user without the right to write.",
      "Use the primary and a user that may write, or make room.",
    ),
    STORE_LOST: code(
      "conflict",
      "The store is not the one that the stack was deployed with, or an older copy of it. Nothing is given out.",
      "Point `overlay:store` at the right store, or rebuild it with `overlayctl recover`.",
    ),
    STORE_MOVED: code(
      "unavailable",
      "The store was moved with `overlayctl store migrate`, or is being moved.",
      "Set `overlay:store` to the place that the error names. After a move that was killed, run it again, or `overlayctl store reopen`.",
    ),
    STORE_CONFLICT: code(
      "unavailable",
      "Other processes kept the store busy, or what is to be written contradicts what is there.",
      "Run it again; if it repeats, resolve the contradiction that the error names.",
    ),
    STORE_CORRUPT: code(
      "internal",
      "Rows of the store are not valid, or contradict each other.",
      "Run `overlayctl store check`, with `--repair` if the problem is repairable; else restore a backup.",
    ),
    STORE_VERSION: code(
      "internal",
      "The store was made by a newer or an older release, whose tables this one cannot read.",
      "Update pulumi-overlay, or use a new store.",
    ),
    STORE_CLOCK: code(
      "internal",
      "The clock of the store and that of this machine differ by more than five minutes. Nothing was changed.",
      "Set the clock that is wrong. If it was corrected meanwhile, `overlayctl store check --repair` accepts it.",
    ),
  },
  Service: {
    ACCESS_TOKEN_MISSING: code(
      "unauthenticated",
      "The request to the service has no access token.",
      "Send `Authorization: Bearer TOKEN`; `overlayctl access create` makes a token.",
    ),
    ACCESS_TOKEN_INVALID: code(
      "unauthenticated",
      "The access token is unknown, revoked or expired.",
      "Use one that `overlayctl access list` shows, or make a new one.",
    ),
    ACCESS_TOKEN_EXISTS: code(
      "conflict",
      "There is an access token with this name already.",
      "Choose another name, or revoke that token first.",
    ),
    ACCESS_TOKEN_NOT_FOUND: code(
      "notFound",
      "There is no active access token with this id or name.",
      "`overlayctl access list` shows all.",
    ),
    ACCESS_DENIED: code(
      "forbidden",
      "The access token does not have the scope, or is bound to another tenant, network or pool; or a command needs the store itself and got a service.",
      "Use a token with the scope that the error names, or the URL of the store.",
    ),
    WEBHOOK_NOT_FOUND: code("notFound", "There is no webhook with this id.", "`overlayctl webhook list` shows all."),
    WEBHOOK_LIMIT: code("exhausted", "There are as many webhooks as there may be.", "Remove one first."),
    NOT_FOUND: code("notFound", "The service has no such route.", "The page /docs of the service lists all routes."),
    METHOD_NOT_ALLOWED: code(
      "invalid",
      "The route exists, but not with this HTTP method.",
      "Use one of the methods in the header `Allow`.",
    ),
    BODY_TOO_LARGE: code("invalid", "The body of the request exceeds the limits of the service.", "Send less at once."),
    BODY_TYPE: code(
      "invalid",
      "The body of the request is not JSON.",
      "Send it with `Content-Type: application/json`.",
    ),
    REQUEST_TIMEOUT: code(
      "invalid",
      "The request did not arrive in time, or the client has gone.",
      "Send it without pauses, or give it a longer deadline.",
    ),
    RATE_LIMITED: code(
      "rateLimited",
      "The caller sends more requests, or has more streams open, than the service allows.",
      "Wait for the time in the header `Retry-After`.",
    ),
    SERVICE_STOPPING: code(
      "unavailable",
      "This process of the service is shutting down.",
      "Try again, or use another instance.",
    ),
    INTERNAL: code(
      "internal",
      "An error that is not expected.",
      "The log of the service has its text under the id in the header `X-Request-Id`. Report it as a bug, with that text.",
    ),
  },
} as const satisfies Record<string, Record<string, ErrorCode>>;

type Groups = typeof ERROR_GROUPS;
export type Code = { [G in keyof Groups]: keyof Groups[G] }[keyof Groups];

export const ERROR_CODES: Record<Code, ErrorCode> = Object.assign({}, ...Object.values(ERROR_GROUPS));

export const CODES = Object.keys(ERROR_CODES) as Code[];
