import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { LabStack, must } from "./lab-stack";

/** Owner, mode and content of our files on a host, changed by hand: root runs the scripts at boot, and records decide what is removed. */
let lab: Lab;
let stack: LabStack;
let uid: string;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
  stack = await LabStack.on(lab);
  await stack.network();
  await stack.runner("r1");
  uid = String(stack.props("RunnerSubnet", "r1").uid);
});
afterAll(async () => {
  await lab?.down();
});

const FOLDER = "/var/lib/overlay/training";
const record = () => `${FOLDER}/${uid}.json`;
const script = () => `${FOLDER}/${uid}.sh`;
const MODE = "mode is 777, should be 755";

const CASES: [what: string, spoil: () => string, drift: () => string[]][] = [
  [
    "mode of the boot script",
    () => "chmod 777 /var/lib/overlay/boot.sh",
    () => [`file /var/lib/overlay/boot.sh: ${MODE}`],
  ],
  [
    "owner of the owner's script",
    () => `chown 1000 ${script()}`,
    () => [`file ${script()}: owner is 1000, should be 0`],
  ],
  ["mode of the record", () => `chmod 666 ${record()}`, () => [`file ${record()}: mode is 666, should be 644`]],
  [
    "a link in place of the script",
    () => `mv ${script()} /root/script; ln -s /root/script ${script()}`,
    () => [`file ${script()}: ${MODE}`],
  ],
  [
    "mode of the folder",
    () => `chmod 777 ${FOLDER}`,
    () => [record(), script()].map((path) => `file ${path}: ${MODE} (${FOLDER})`),
  ],
  [
    "owner of all folders",
    () => "chown 1000 /var/lib/overlay",
    () => [
      `file ${record()}: owner is 1000, should be 0 (/var/lib/overlay)`,
      "sysctl net.ipv4.ip_forward: owner is 1000, should be 0 (/var/lib/overlay), of its saved former value",
      "file /var/lib/overlay/boot.sh: owner is 1000, should be 0 (/var/lib/overlay)",
      `file ${script()}: owner is 1000, should be 0 (/var/lib/overlay)`,
    ],
  ],
  [
    "an item that is taken out of the record",
    () => `sed -i 's/{"kind":"address"[^}]*},//' ${record()}`,
    () => [`file ${record()}: it does not list address 10.128.64.1/18 on kohaku-overlay`],
  ],
  [
    "another value in the record",
    () => `sed -i 's/"vni":101/"vni":999/' ${record()}`,
    () => [`file ${record()}: it lists link vxkr1 with other values`],
  ],
  [
    "another MAC in the record",
    () => `sed -i 's/"mac":"02:/"mac":"06:/g' ${record()}`,
    () => [`file ${record()}: it lists link kohaku-overlay with other values, it lists link vxkr1 with other values`],
  ],
  [
    "a device of another program in the record",
    () =>
      `ip link add theirs type bridge; sed -i 's/"items":\\[/"items":[{"kind":"link","name":"theirs","type":"bridge","mac":"02:00:00:00:00:77"},/' ${record()}`,
    () => [`file ${record()}: it lists link theirs, which is not planned`],
  ],
];

test.each(CASES)("%s: refresh names the file, and up --refresh makes it as it was", async (_, spoil, drift) => {
  const look = `stat -c '%u %a %F %n' /var/lib/overlay ${FOLDER} ${FOLDER}/* /var/lib/overlay/boot.sh; cat ${FOLDER}/* /var/lib/overlay/boot.sh; ip -o link`;
  const before = await must(lab, "r1", look);
  await must(lab, "r1", spoil());
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual(drift().map((line) => `10.254.1.1: ${line}`));
  await stack.refresh();
  await stack.runner("r1");
  await must(lab, "r1", "ip link del theirs 2>/dev/null || :");
  expect(await must(lab, "r1", look)).toBe(before);
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
});

test("new files are writable by root alone, whatever the umask of root's shell is", async () => {
  await must(lab, "r1", "rm -r /var/lib/overlay");
  await must(lab, "r1", "umask 000; mkdir -p /var/lib/overlay/training");
  await stack.refresh();
  await stack.runner("r1");
  expect(await must(lab, "r1", "find /var/lib/overlay -perm /022 -o ! -user 0")).toBe("");
  expect(await stack.drift("RunnerSubnet", "r1")).toEqual([]);
});
