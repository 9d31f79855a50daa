import { beforeEach, describe, expect, test } from "vitest";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { ownerOf, Stage } from "./stage";

let stage: Stage;

const [HUB, R1, R2] = ["192.0.2.1", "192.0.2.11", "192.0.2.12"];
const web = { port: 80, to: "10.128.64.5", toPort: 8080 };
const mail = { port: 25, to: "10.128.128.5" };

beforeEach(async () => {
  stage = await Stage.up({ quarantine: 0 });
  await stage.network();
  await stage.runner("r1", R1!);
  await stage.runner("r2", R2!);
  await stage.make("IPPool", "lb", { ranges: ["203.0.113.10-203.0.113.12"], type: "loadBalancer" });
  stage.fleet.takeWrites();
  stage.fleet.contacted.length = 0;
});

const inputs = (more: Values = {}): Values => ({
  pool: "lb",
  attach: "training",
  connection: { host: HUB },
  forwards: [web],
  ...more,
});
const onRunner = (name: string, host: string, more: Values = {}): Values =>
  inputs({ attach: `training/${name}`, connection: { host }, ...more });

/** The same in another stack. */
async function elsewhere(name: string, news: Values, stack = "prod"): Promise<Values | string> {
  const lifecycle = stage.of("StaticIP");
  const caller = { owner: ownerOf("StaticIP", name, stack), dryRun: false };
  const { inputs, failures } = await lifecycle.check(caller, undefined, news);
  if (failures.length > 0) return failures.map(({ reason }) => reason).join("\n");
  return (await lifecycle.create(inputs)).props;
}

test("preview shows address and names and contacts no host; up gives the same", async () => {
  const shown = await stage.preview("StaticIP", "web", inputs({ forwards: [web, { ...mail, protocol: "udp" }] }));
  expect(shown.names).toEqual(["web-tcp-80", "web-udp-25"]);
  expect(shown.ip).toMatch(/^203\.0\.113\.1[0-2]$/);
  expect(stage.fleet.contacted).toEqual([]);
  const made = await stage.make("StaticIP", "web", inputs({ forwards: [web, { ...mail, protocol: "udp" }] }));
  expect(made).toMatchObject({ ip: shown.ip, names: shown.names, sharedWith: [], drift: [] });
  expect(stage.fleet.itemsOn(HUB!)).toContain(`address ${shown.ip}/32 on overlay-vip`);
});

test("resources of two stacks with one key share an address, which is removed with the last of them", async () => {
  const first = await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  const second = (await elsewhere("mail", inputs({ sharingKey: "team-a", forwards: [mail] }))) as Values;
  expect(second).toMatchObject({
    ip: first.ip,
    names: ["team-a-tcp-25"],
    sharedWith: ["org/urn:pulumi:dev::p::overlay:index:StaticIP::web"],
  });
  expect((await stage.of("StaticIP").read("id", first)).props.sharedWith).toEqual([
    ownerOf("StaticIP", "mail", "prod"),
  ]);
  await stage.of("StaticIP").delete(first);
  expect(stage.fleet.itemsOn(HUB!)).toContain(`address ${first.ip}/32 on overlay-vip`);
  await stage.of("StaticIP").delete(second);
  expect(
    stage.fleet.itemsOn(HUB!).filter((key) => key.includes("overlay-vip") || key.includes("OVERLAY-DNAT")),
  ).toEqual([]);
});

test("without a key the address is exclusive", async () => {
  const first = await stage.make("StaticIP", "web", inputs());
  expect(((await elsewhere("mail", inputs({ forwards: [mail] }))) as Values).ip).not.toBe(first.ip);
  expect(await elsewhere("more", inputs({ ip: first.ip, forwards: [mail] }))).toMatch(
    /IP_IN_USE: .* is reserved by org\/urn:pulumi:dev::p::overlay:index:StaticIP::web/,
  );
});

test("a taken port is refused in preview, with its holder, for new resources and for changes in place", async () => {
  await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  const conflict =
    /PORT_CONFLICT: Port tcp\/80 on 203\.0\.113\.1\d of IPPool lb belongs to org\/urn:pulumi:dev::p::overlay:index:StaticIP::web/;
  expect(await elsewhere("rival", inputs({ sharingKey: "team-a" }))).toMatch(conflict);
  const own = await stage.make("StaticIP", "mail", inputs({ sharingKey: "team-a", forwards: [mail] }));
  const wanted = inputs({ sharingKey: "team-a", forwards: [mail, web] });
  expect(await stage.refusal("StaticIP", "mail", wanted, own)).toMatch(conflict);
  const more = await stage.change(
    "StaticIP",
    "mail",
    own,
    inputs({ sharingKey: "team-a", forwards: [mail, { ...web, protocol: "udp" }] }),
  );
  expect(more.names).toEqual(["team-a-tcp-25", "team-a-udp-80"]);
  expect(await elsewhere("third", inputs({ sharingKey: "team-a", forwards: [{ ...web, protocol: "udp" }] }))).toMatch(
    /PORT_CONFLICT/,
  );
});

test.each<[change: string, news: Values, isNew: boolean]>([
  ["a new resource", inputs({ sharingKey: "team-a" }), true],
  ["a change of another one", inputs({ sharingKey: "team-a", forwards: [mail, web] }), false],
])(
  "a port that is released in the same run is refused for %s, in preview and in any order of an up",
  async (_, news, isNew) => {
    const holder = await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
    const other = await stage.make("StaticIP", "mail", inputs({ sharingKey: "team-a", forwards: [mail] }));
    const released = inputs({ sharingKey: "team-a", forwards: [] });
    const refusal = async (dryRun: boolean) => {
      const checked = await stage.check("StaticIP", isNew ? "new" : "mail", news, isNew ? undefined : other, dryRun);
      return checked.failures.map(({ reason }) => reason);
    };
    const refused = [
      expect.stringMatching(/^PORT_CONFLICT: Port tcp\/80 .*::web\. .* remove it in one up and add it in the next/),
    ];
    for (const dryRun of [true, false]) {
      stage.newRun();
      expect(await refusal(dryRun)).toEqual(refused);
      await stage.check("StaticIP", "web", released, holder, dryRun);
      expect(await refusal(dryRun)).toEqual(refused);
    }
    const done = await stage.change("StaticIP", "web", holder, released);
    expect(await refusal(false)).toEqual(refused);
    stage.newRun();
    await stage.check("StaticIP", "web", released, done);
    expect(await refusal(false)).toEqual([]);
  },
);

test("the only holder of an address can change its key", async () => {
  const first = await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  const alone = await stage.change("StaticIP", "web", first, inputs({ sharingKey: "team-b" }));
  expect(alone).toMatchObject({ ip: first.ip, names: ["team-b-tcp-80"] });
  await elsewhere("mail", inputs({ sharingKey: "team-b", forwards: [mail] }));
  expect(await stage.refusal("StaticIP", "web", inputs({ sharingKey: "team-c" }), alone)).toMatch(
    /SHARING_CONFLICT: .* is shared by org\/urn:pulumi:prod/,
  );
});

test("an address cannot be on two hosts", async () => {
  await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  expect(await elsewhere("mail", onRunner("r1", R1!, { sharingKey: "team-a", forwards: [mail] }))).toMatch(
    /SHARING_CONFLICT: attach: 203\.0\.113\.1\d is shared with org\/urn:pulumi:dev::p::overlay:index:StaticIP::web, which has it on training; this one would have it on training\/r1/,
  );
});

test("what another branch was offered on another host does not stop an up, but a resource of the same program does", async () => {
  const shown = await stage.preview("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  stage.newRun();
  const branch = onRunner("r1", R1!, { sharingKey: "team-a", forwards: [mail] });
  await stage.preview("StaticIP", "mail", branch);
  stage.newRun();
  expect(await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }))).toMatchObject({ ip: shown.ip });
  stage.newRun();
  await stage.preview("StaticIP", "one", inputs({ sharingKey: "team-b" }));
  expect(await stage.refusal("StaticIP", "two", { ...branch, sharingKey: "team-b" })).toMatch(/^SHARING_CONFLICT: /);
  stage.newRun();
  await stage.make("StaticIP", "one", inputs({ sharingKey: "team-b" }));
  const { failures } = await stage.check("StaticIP", "two", { ...branch, sharingKey: "team-b" });
  expect(failures[0]?.reason).toMatch(/^SHARING_CONFLICT: /);
});

describe("co-holders of one stack on two hosts are refused, in any order of their checks", () => {
  const KEY = { sharingKey: "team-a" };
  const refused =
    /^SHARING_CONFLICT: attach: \S+ is shared with \S+, which has it on \S+; this one would have it on \S+\. /;
  const existing = { web: inputs(KEY), mail: inputs({ ...KEY, forwards: [mail] }) };
  const moved = onRunner("r1", R1!, { ...KEY, forwards: [mail] });
  const cases: [string, Record<string, Values>][] = [
    [
      "a new one is checked last",
      { web: existing.web, mail: existing.mail, third: onRunner("r1", R1!, { ...KEY, forwards: [] }) },
    ],
    ["a new one is checked first", { third: onRunner("r1", R1!, { ...KEY, forwards: [] }), web: existing.web }],
    ["one of two moves, and is checked last", { web: existing.web, mail: moved }],
    ["one of two moves, and is checked first", { mail: moved, web: existing.web }],
  ];
  test.each(cases)("%s", async (_, program) => {
    const made: Record<string, Values> = {};
    for (const [name, news] of Object.entries(existing)) made[name] = await stage.make("StaticIP", name, news);
    for (const dryRun of [true, false]) {
      stage.newRun();
      const reasons: string[] = [];
      for (const [name, news] of Object.entries(program)) {
        const { failures } = await stage.check("StaticIP", name, { ...news, ip: made.web!.ip }, made[name], dryRun);
        reasons.push(...failures.map(({ reason }) => reason));
      }
      expect(reasons).toEqual([expect.stringMatching(refused)]);
    }
  });
});

test("a co-holder that a killed up has claimed on another host is refused by the next up, too", async () => {
  const web = await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  const third = onRunner("r1", R1!, { sharingKey: "team-a", forwards: [] });
  stage.newRun();
  await stage.make("StaticIP", "third", third); // killed before web is checked
  stage.newRun();
  expect((await stage.check("StaticIP", "third", third)).failures).toEqual([]);
  const { failures } = await stage.check("StaticIP", "web", inputs({ sharingKey: "team-a" }), web);
  expect(failures[0]?.reason).toMatch(/^SHARING_CONFLICT: .*StaticIP::third, which has it on training\/r1/);
});

test("a resource that moves to another address because of a port may have it on another host", async () => {
  const KEY = { sharingKey: "team-a", onPortConflict: "anotherAddress" };
  const first = await stage.make("StaticIP", "web", inputs(KEY));
  const before = await stage.make("StaticIP", "mail", inputs({ ...KEY, forwards: [mail] }));
  stage.newRun();
  const { failures, inputs: shown } = await stage.check("StaticIP", "mail", onRunner("r1", R1!, KEY), before, true);
  expect(failures).toEqual([]);
  expect(shown.ip).not.toBe(before.ip);
  expect(await stage.refusal("StaticIP", "web", inputs(KEY), first)).toBe("");
});

test("a refused preview of another stack does not stop a resource that holds the address", async () => {
  const KEY = { sharingKey: "team-a" };
  const held = await stage.make("StaticIP", "web", inputs(KEY));
  const caller = { owner: ownerOf("StaticIP", "mail", "prod"), dryRun: true };
  const onR1 = onRunner("r1", R1!, { ...KEY, forwards: [mail] });
  stage.newRun();
  expect((await stage.of("StaticIP").check(caller, undefined, onR1)).failures).toHaveLength(1);
  stage.newRun();
  expect(await stage.refusal("StaticIP", "web", inputs(KEY), held)).toBe("");
  stage.newRun();
  expect((await stage.of("StaticIP").check(caller, undefined, inputs({ ...KEY, forwards: [mail] }))).failures).toEqual(
    [],
  );
  expect(await stage.refusal("StaticIP", "web", onRunner("r1", R1!, KEY), held)).toBe("");
});

test.each([true, false])(
  "a renamed resource that is replaced by force is not refused because of itself (preview: %s)",
  async (dryRun) => {
    const held = await stage.make("StaticIP", "web", inputs());
    const news = inputs({ staticIpName: "web", ip: held.ip });
    stage.newRun();
    const lifecycle = stage.of("StaticIP");
    const caller = { owner: ownerOf("StaticIP", "renamed"), dryRun };
    expect((await lifecycle.check(caller, held, news)).failures).toEqual([]);
    expect((await lifecycle.check(caller, undefined, news)).failures).toEqual([]);
  },
);

test("a resource that moves and is replaced by force is not refused because of an offer of another stack", async () => {
  const KEY = { sharingKey: "team-a" };
  const held = await stage.make("StaticIP", "web", inputs(KEY));
  const caller = { owner: ownerOf("StaticIP", "mail", "prod"), dryRun: true };
  await stage.of("StaticIP").check(caller, undefined, inputs({ ...KEY, forwards: [mail] }));
  stage.newRun();
  for (const olds of [held, undefined])
    expect(await stage.refusal("StaticIP", "web", onRunner("r1", R1!, KEY), olds)).toBe("");
});

describe("a port that a change in place adds is refused for another resource of the same preview", () => {
  const KEY = { sharingKey: "team-a" };
  const added = { port: 22, to: "10.128.64.5" };
  test.each<[other: string, news: Values, isNew: boolean]>([
    ["another change", inputs({ ...KEY, forwards: [mail, added] }), false],
    ["a new resource", inputs({ ...KEY, forwards: [added] }), true],
  ])("%s", async (_, news, isNew) => {
    const made = await stage.make("StaticIP", "web", inputs(KEY));
    const second = await stage.make("StaticIP", "mail", inputs({ ...KEY, forwards: [mail] }));
    stage.newRun();
    await stage.preview("StaticIP", "web", inputs({ ...KEY, forwards: [web, added] }), made);
    expect(await stage.refusal("StaticIP", isNew ? "new" : "mail", news, isNew ? undefined : second)).toMatch(
      /^PORT_CONFLICT: Port tcp\/22 on .* belongs to \S+::web\./,
    );
  });
});

test("co-holders of an address in one stack move together", async () => {
  const first = await stage.make("StaticIP", "web", inputs({ sharingKey: "team-a" }));
  const second = await stage.make("StaticIP", "mail", inputs({ sharingKey: "team-a", forwards: [mail] }));
  stage.newRun();
  await stage.change("StaticIP", "web", first, onRunner("r1", R1!, { sharingKey: "team-a" }));
  await stage.change("StaticIP", "mail", second, onRunner("r1", R1!, { sharingKey: "team-a", forwards: [mail] }));
  expect(stage.fleet.itemsOn(R1!)).toContain(`address ${first.ip}/32 on overlay-vip`);
  expect(stage.fleet.itemsOn(HUB!).filter((key) => key.includes("overlay-vip"))).toEqual([]);
});

test("a move configures the new host first, then cleans the old one", async () => {
  const made = await stage.make("StaticIP", "web", inputs());
  stage.fleet.takeWrites();
  const moved = await stage.change("StaticIP", "web", made, onRunner("r2", R2!));
  expect(moved).toMatchObject({ ip: made.ip, leaseId: made.leaseId, drift: [] });
  const writes = stage.fleet.takeWrites();
  const arrived = writes.indexOf(`${R2}: + address ${made.ip}/32 on overlay-vip`);
  expect(arrived).toBeGreaterThanOrEqual(0);
  expect(writes.indexOf(`${HUB}: - address ${made.ip}/32 on overlay-vip`)).toBeGreaterThan(arrived);
});

test("another target of a forward changes its rules and nothing else", async () => {
  const made = await stage.make("StaticIP", "web", inputs());
  stage.fleet.takeWrites();
  await stage.change("StaticIP", "web", made, inputs({ forwards: [{ ...web, to: "10.128.64.6" }] }));
  expect(stage.fleet.takeWrites()).toEqual([
    `${HUB}: - rule '-d ${made.ip}/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.128.64.5:8080' in OVERLAY-DNAT (IPv4 nat)`,
    `${HUB}: + rule '-d ${made.ip}/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.128.64.6:8080' in OVERLAY-DNAT (IPv4 nat)`,
  ]);
});

test.each<[string, unknown]>([
  ["a target", [{ ...web, to: UNKNOWN }]],
  ["a forward", [UNKNOWN]],
  ["all forwards", UNKNOWN],
])("%s that is unknown makes the names unknown, and not the address", async (_, forwards) => {
  const shown = await stage.preview("StaticIP", "web", inputs({ forwards }));
  expect(shown.ip).toMatch(/^203\.0\.113\.1\d$/);
  expect(shown).not.toHaveProperty("names");
  expect(shown.forwards).toEqual(forwards);
});

test("invalid inputs are refused in preview, also if others are unknown until up", async () => {
  const twice = inputs({ forwards: [web, web], labels: UNKNOWN });
  expect(await stage.refusal("StaticIP", "web", twice)).toMatch(/forwards\[1\]\.port is there twice/);
  const later = inputs({ runners: ["training/r1"], runnerConnections: UNKNOWN });
  expect(await stage.refusal("StaticIP", "web", later)).toBe("");
});

test("another address is configured before the old one is removed", async () => {
  const made = await stage.make("StaticIP", "web", inputs({ ip: "203.0.113.10" }));
  const shown = await stage.preview("StaticIP", "web", inputs({ ip: "203.0.113.11" }), made);
  expect(await stage.of("StaticIP").diff(made, shown)).toMatchObject({ replaces: ["ip"], deleteBeforeReplace: false });
  const next = await stage.make("StaticIP", "web", inputs({ ip: "203.0.113.11" }), made);
  expect(stage.fleet.itemsOn(HUB!)).toContain("address 203.0.113.10/32 on overlay-vip");
  await stage.of("StaticIP").delete(made);
  expect(stage.fleet.itemsOn(HUB!)).not.toContain("address 203.0.113.10/32 on overlay-vip");
  expect(stage.fleet.itemsOn(HUB!)).toContain(`address ${next.ip}/32 on overlay-vip`);
});

test("two addresses are swapped in one up: each host carries one, and none after the deletes", async () => {
  const [A, B] = ["203.0.113.10", "203.0.113.11"];
  const wishes = (a: string, b: string) => [inputs({ ip: a }), onRunner("r1", R1!, { ip: b })] as const;
  const before = await Promise.all(wishes(A, B).map((news, i) => stage.make("StaticIP", `s${i}`, news)));
  stage.newRun();
  const next: Values[] = [];
  for (const [i, news] of wishes(B, A).entries()) next.push(await stage.preview("StaticIP", `s${i}`, news, before[i]));
  const after = await Promise.all(next.map(async (news) => (await stage.of("StaticIP").create(news)).props));
  for (const old of before) await stage.of("StaticIP").delete(old);
  const carried = (host: string) => stage.fleet.itemsOn(host).filter((key) => key.includes("overlay-vip"));
  expect([HUB!, R1!].map((host) => carried(host).filter((key) => key.startsWith("address")))).toEqual([
    [`address ${B}/32 on overlay-vip`],
    [`address ${A}/32 on overlay-vip`],
  ]);
  for (const each of after) await stage.of("StaticIP").delete(each);
  expect([HUB!, R1!].flatMap(carried)).toEqual([]);
});

test("take: an address or a port is taken from a holder of the same tenant, whose next diff is a replacement", async () => {
  const made = await stage.make("StaticIP", "web", inputs({ ip: "203.0.113.10" }));
  const taker = (await elsewhere("rival", inputs({ ip: "203.0.113.10", onConflict: "take" }))) as Values;
  expect(taker.ip).toBe("203.0.113.10");
  expect(await stage.of("StaticIP").diff(made, made)).toMatchObject({ changes: true, replaces: ["leaseId"] });
  const sharer = await stage.make("StaticIP", "mail", inputs({ sharingKey: "team-a", forwards: [mail] }));
  const port = (await elsewhere(
    "port",
    inputs({ sharingKey: "team-a", forwards: [mail], onConflict: "take" }),
  )) as Values;
  expect(port).toMatchObject({ ip: sharer.ip, sharedWith: [] });
  const other = (await elsewhere("other", inputs({ sharingKey: "team-a", forwards: [web] }))) as Values;
  const more = { ...inputs({ sharingKey: "team-a", forwards: [mail, web], onConflict: "take" }) };
  const lifecycle = stage.of("StaticIP");
  const { inputs: checked } = await lifecycle.check(
    { owner: String(port.owner), dryRun: false, program: "main" },
    port,
    more,
  );
  expect(await lifecycle.update("id", port, checked)).toMatchObject({ ip: other.ip, sharedWith: [] });
});

test("a taken address can be on another host; the old host is cleaned by the next up of the former holder", async () => {
  const made = await stage.make("StaticIP", "web", inputs({ ip: "203.0.113.10" }));
  const onR1 = onRunner("r1", R1!, { ip: "203.0.113.10", onConflict: "take" });
  expect(await elsewhere("rival", onR1)).toMatchObject({ ip: "203.0.113.10" });
  const other = await stage.make("StaticIP", "web", inputs(), made);
  await stage.of("StaticIP").delete(made);
  const carried = stage.fleet.itemsOn(HUB!).filter((key) => key.startsWith("address 203"));
  expect(carried).toEqual([`address ${other.ip}/32 on overlay-vip`]);
  expect(stage.fleet.itemsOn(R1!)).toContain("address 203.0.113.10/32 on overlay-vip");
});

test("the address of a reservation is not taken", async () => {
  await stage.make("IPReservation", "other", { pool: "lb", ip: "203.0.113.10" });
  expect(await elsewhere("rival", inputs({ ip: "203.0.113.10", onConflict: "take" }))).toMatch(/IP_IN_USE/);
});

const REFUSED: [what: string, more: Values, reason: RegExp][] = [
  ["the same port twice", { forwards: [web, web] }, /forwards\[1\]\.port is there twice: tcp\/80/],
  ["no port", { forwards: [{ ...web, port: 0 }] }, /forwards\[0\]\.port/],
  [
    "a target that is no address",
    { forwards: [{ ...web, to: "web; reboot" }] },
    /forwards\[0\]\.to must be an IP address/,
  ],
  [
    "a target of the other family",
    { forwards: [{ ...web, to: "fd00::5" }] },
    /forwards\[0\]\.to is fd00::5, but 203\.0\.113\.1\d is an IPv4 address/,
  ],
  ["an unknown pool", { pool: "nowhere" }, /POOL_NOT_FOUND: pool: There is no IPPool named 'nowhere'/],
  [
    "an unknown host",
    { attach: "training/r9" },
    /POOL_NOT_FOUND: attach: There is no OverlayNetwork or RunnerSubnet named 'training\/r9'/,
  ],
  [
    "preserveClientIp on a hub without a return path",
    { preserveClientIp: true },
    /forwards\[0\]\.to must be a workload of one of `runners`/,
  ],
  [
    "a return path of another runner",
    { preserveClientIp: true, runners: ["training/r2"], runnerConnections: [{ host: R2 }] },
    /forwards\[0\]\.to must be a workload of one of `runners`/,
  ],
  [
    "runners without connections",
    { preserveClientIp: true, runners: ["training/r1"] },
    /runnerConnections must be one for each of 1 runners/,
  ],
  [
    "preserveClientIp on a runner for another's workloads",
    onRunner("r2", R2!, { preserveClientIp: true }),
    /must be a workload of runner r2/,
  ],
];

test.each(REFUSED)("refused: %s", async (_, more, reason) => {
  expect(await stage.refusal("StaticIP", "web", inputs(more))).toMatch(reason);
  expect(stage.fleet.contacted).toEqual([]);
});

test("preserveClientIp on a hub: the workload's runner gets the return path, and loses it when it is no longer needed", async () => {
  const shown = inputs({ preserveClientIp: true, runners: ["training/r1"], runnerConnections: [{ host: R1 }] });
  const made = await stage.make("StaticIP", "web", shown);
  const back = () => stage.fleet.itemsOn(R1!).filter((key) => /BACK|to table/.test(key));
  expect(back()).toHaveLength(6);
  expect(stage.fleet.itemsOn(HUB!).filter((key) => key.includes("MASQUERADE"))).toHaveLength(3);
  const hidden = await stage.change("StaticIP", "web", made, inputs());
  expect(back()).toEqual([]);
  expect(hidden.pendingCleanup).toEqual([]);
});

test("a sharing key that is no DNS label is hashed in names, and stays a key of its own", async () => {
  const made = await stage.make("StaticIP", "web", inputs({ sharingKey: "meYOU" }));
  expect(made.names).toEqual(["ps9pn7rkocct7m9ivtovuktb-tcp-80"]);
  expect(((await elsewhere("mail", inputs({ sharingKey: "meyou", forwards: [mail] }))) as Values).ip).not.toBe(made.ip);
});

test("a pool of both families gives an address of the workloads' family", async () => {
  await stage.make("IPPool", "dual", { ranges: ["203.0.113.20-203.0.113.22", "2001:db8::/120"], type: "loadBalancer" });
  const six = await stage.preview(
    "StaticIP",
    "six",
    inputs({ pool: "dual", forwards: [{ ...web, to: "fd00:128:4::5" }] }),
  );
  expect(six.ip).toMatch(/^2001:db8::/);
  const four = await stage.preview("StaticIP", "four", inputs({ pool: "dual" }));
  expect(four.ip).toMatch(/^203\./);
});

test("the tenant comes from the resource or from the provider's setting, never from the pool", async () => {
  const tenant = { org: "acme", project: "web" };
  await stage.make("IPPool", "acme", { ranges: ["203.0.113.20-203.0.113.22"], type: "loadBalancer", tenant });
  const ip = "203.0.113.20";
  const victim = await stage.make("StaticIP", "victim", inputs({ pool: "acme", ip, tenant }));
  const refused =
    /^TENANT_MISMATCH: IPPool acme belongs to tenant acme\/web; this request comes from (no tenant|tenant evil\/x)/;
  expect(await elsewhere("thief", inputs({ pool: "acme", ip, onConflict: "take" }))).toMatch(refused);
  const evil = { org: "evil", project: "x" };
  expect(await elsewhere("thief", inputs({ pool: "acme", ip, onConflict: "take", tenant: evil }))).toMatch(refused);
  expect(await stage.refusal("StaticIP", "victim", inputs({ pool: "acme", ip }), victim)).toMatch(refused);
  expect(await elsewhere("heir", inputs({ pool: "acme", ip, onConflict: "take", tenant }))).toMatchObject({ ip });
  stage.deps = { ...stage.deps, tenant };
  expect(await elsewhere("by-setting", inputs({ pool: "acme" }))).toMatchObject({ tenant });
});

test("a resource that gets a tenant keeps its address, and no host is contacted", async () => {
  const made = await stage.make("StaticIP", "web", inputs());
  stage.fleet.contacted.length = 0;
  const tenant = { org: "acme", project: "web" };
  expect(await stage.change("StaticIP", "web", made, inputs({ tenant }))).toMatchObject({ ip: made.ip, tenant });
  expect(stage.fleet.contacted).toEqual([]);
});

test("anotherAddress: with the same key and port it gets another address, in preview and up, also by a change", async () => {
  const shared = (more: Values = {}) => inputs({ sharingKey: "team-a", onPortConflict: "anotherAddress", ...more });
  const first = await stage.make("StaticIP", "web", shared());
  const shown = await stage.preview("StaticIP", "rival", shared());
  expect(shown.ip).not.toBe(first.ip);
  const rival = await stage.make("StaticIP", "rival", shared());
  expect(rival).toMatchObject({ ip: shown.ip, sharedWith: [] });
  const second = await stage.make("StaticIP", "mail", shared({ forwards: [mail] }));
  expect(second.ip).toBe([first.ip, rival.ip].sort()[0]);
  const next = await stage.preview("StaticIP", "mail", shared({ forwards: [mail, web] }), second);
  expect([first.ip, rival.ip]).not.toContain(next.ip);
  expect(await stage.of("StaticIP").diff(second, next)).toMatchObject({ replaces: ["ip"], deleteBeforeReplace: false });
  const moved = await stage.make("StaticIP", "mail", shared({ forwards: [mail, web] }), second);
  expect(moved.ip).toBe(next.ip);
  await stage.of("StaticIP").delete(second);
  expect((await stage.check("StaticIP", "mail", shared({ forwards: [mail, web] }), moved)).inputs.ip).toBe(next.ip);
  expect(await stage.refusal("StaticIP", "more", shared({ onConflict: "take" }))).toMatch(
    /^INPUT_INVALID: onPortConflict /,
  );
});
