import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { LabStack, must } from "./lab-stack";
import { LabCtl } from "./labctl";

/** Tunnels of WireGuard whose configuration is right, and which pass no data or not all: what refresh, up and `overlayctl verify` say. */
let lab: Lab;
let ctl: LabCtl;
let stack: LabStack;

beforeAll(async () => {
  lab = await Lab.up({ runners: 2 });
  ctl = new LabCtl(lab);
  stack = await LabStack.on(lab, ctl.store);
  await stack.network({ tunnel: "wireguard" });
  for (const name of ["r1", "r2"]) await stack.runner(name);
});
afterAll(async () => {
  await lab?.down();
  ctl?.remove();
});

const repairs: string[] = [];
afterEach(async () => {
  for (const script of repairs.splice(0)) await must(lab, "hub", script);
});

/** On the hub, for the time of one test: packets from r1 that match are dropped. */
async function dropFromR1(match: string): Promise<void> {
  const rule = `PREROUTING -s ${lab.host("r1").address} -p udp --dport 51820 ${match} -j DROP`;
  await must(lab, "hub", `iptables -t raw -I ${rule}`);
  repairs.push(`iptables -t raw -D ${rule}`);
}

/** From now on the host's clock, as scripts read it, is some minutes ahead. */
const setClockAhead = (host: string): Promise<string> =>
  must(
    lab,
    host,
    `printf '#!/bin/sh\nexec /bin/date -d "+1000 seconds" "$@"\n' >/usr/local/sbin/date; chmod 755 /usr/local/sbin/date; hash -r; [ $(date +%s) -gt $(($(/bin/date +%s) + 900)) ]`,
  );
const resetClock = (host: string): Promise<string> => must(lab, host, "rm /usr/local/sbin/date");

const drift = (): Promise<unknown> => stack.drift("RunnerSubnet", "r1");
const keyOf = (host: string): Promise<string> => must(lab, host, "wg show vxkrW0 public-key");

test("a peer without a handshake for a while that answers is no drift", async () => {
  for (const host of ["hub", "r1"]) await setClockAhead(host);
  expect(await drift()).toEqual([]);
  for (const host of ["hub", "r1"]) await resetClock(host);
});

test("one that does not answer is drift at both ends, unless it is not kept alive; it is none once it answers", async () => {
  const [hub, r1] = [await keyOf("hub"), await keyOf("r1")];
  await dropFromR1("");
  for (const host of ["hub", "r1"]) await setClockAhead(host);
  const silent = (host: string, key: string) =>
    `${lab.host(host).address}: peer ${key} of vxkrW0: no handshake for 180 s, and no answer`;
  expect(await drift()).toEqual([silent("hub", r1), silent("r1", hub)]);
  await must(lab, "r1", `wg set vxkrW0 peer ${hub} persistent-keepalive off`);
  expect(await drift()).toEqual([
    silent("hub", r1),
    `${lab.host("r1").address}: peer ${hub} of vxkrW0: keepalive is 0, should be 25`,
  ]);
  for (const host of ["hub", "r1"]) await resetClock(host);
  await must(lab, "hub", repairs.pop()!);
  await stack.refresh();
  await stack.runner("r1");
  expect(await drift()).toEqual([]);
});

test("a tunnel whose handshakes pass and whose data does not is named by refresh, up and `overlayctl verify`", async () => {
  expect((await ctl.run(["verify", "training", "--count", "1"])).stderr).toBe("training: 6 of 6 pairs work.\n");
  await dropFromR1("-m length --length 250:");
  const [hub, r1] = [await keyOf("hub"), await keyOf("r1")];
  const [address, at] = ["10.128.0.1", lab.host("r1").address];
  const dead = `full-size packets (MTU 1440) from the runner to the hub's overlay address ${address} do not get through (tried on ${at})`;
  expect(await drift()).toEqual([dead]);
  await expect(stack.runner("r1", { mtu: 1400 })).rejects.toThrow(
    `VERIFY_FAILED: It is configured, but ${dead.replace("1440", "1400")}`,
  );
  await must(lab, "r1", `ping -c 1 -W 2 ${address}`);
  for (const [host, key] of [
    ["r1", hub],
    ["hub", r1],
  ] as const)
    expect(await must(lab, host, `wg show vxkrW0 latest-handshakes`)).toMatch(
      new RegExp(`${key.replaceAll("+", "\\+")}\\t[1-9]`),
    );
  const { code, json } = await ctl.run(["verify", "training", "--count", "2", "--json"]);
  expect(code).toBe(1);
  expect(Object.fromEntries(json.map(({ from, to, hop }) => [`${from} → ${to}`, hop]))).toMatchObject({
    "r1 → hub": "r1 to hub: packets of 1400 bytes are too large for the underlay",
  });
});

test("`overlayctl verify` distinguishes a port that is closed from an underlay that is down", async () => {
  const hops = async (): Promise<Record<string, unknown>> => {
    const { json } = await ctl.run(["verify", "training", "--count", "1", "--json"]);
    return Object.fromEntries(json.map(({ from, to, hop }) => [`${from} → ${to}`, hop]));
  };
  await dropFromR1("");
  expect((await hops())["r1 → r2"]).toMatch(/^r1 to hub: UDP port 51820 does not pass, /);
  const route = `unreachable ${lab.host("r1").address}`;
  await must(lab, "hub", `ip route add ${route}`);
  repairs.push(`ip route del ${route}`);
  expect((await hops())["r2 → r1"]).toMatch(/^the underlay: /);
});
