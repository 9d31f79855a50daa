import { execFileSync, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { expect, test } from "vitest";
import { lockCommand, rootCommand, scriptCommand } from "../../../provider/host/ssh/shell";

const mark = "overlay-feed";
const shells = ["/bin/sh", "/bin/bash", "/bin/dash", "/usr/bin/fish", "/bin/csh"].filter((shell) => existsSync(shell));

const serve = (login: string, input: string) =>
  spawnSync(login, ["-c", rootCommand({ mark, sudo: false, limit: 5 })], { input, encoding: "utf8" });

test.each(shells)("under the login shell %s scripts are served one by one", (login) => {
  const scripts = ["echo one", "exit 3", "cat; echo err >&2", "echo 'open", 'echo "it\'s" $((1 + 1)) `echo \\\\`'];
  const { stdout, stderr, status } = serve(login, scripts.map((script) => scriptCommand(mark, script)).join(""));
  expect(stdout.split("\n")).toEqual([
    ...[`${mark} start`, `${mark} ready`],
    ...["one", `${mark} 0`],
    `${mark} 3`,
    `${mark} 0`,
    `${mark} 2`,
    ...["it's 2 \\", `${mark} 0`, ""],
  ]);
  expect(stderr.split("\n").filter((line) => !line.includes("nterminated"))).toEqual([
    ...[`${mark} ready`, `${mark} 0`, `${mark} 3`],
    ...["err", `${mark} 0`, `${mark} 2`, `${mark} 0`, ""],
  ]);
  expect(status).toBe(0);
});

test("a script that was cut off half way does not run", () => {
  const whole = scriptCommand(mark, "echo first\necho 'second'");
  for (let cut = 1; cut < whole.indexOf(")"); cut++) {
    expect(serve("/bin/sh", whole.slice(0, cut)).stdout).toBe(`${mark} start\n${mark} ready\n`);
  }
});

test.each([
  [false, /^sh -c 'm=.*exec timeout -k 5 "\$2" sh' overlay overlay-feed 2$/],
  [true, /^sudo -n env SSH_CONNECTION="\$SSH_CONNECTION" sh -c /],
])("the command line, with sudo: %o", (sudo, expected) => {
  const command = rootCommand({ mark, sudo, limit: 1.5 });
  expect(command).toMatch(expected);
  expect(command).not.toContain("\n");
  execFileSync("sh", ["-n", "-c", command]);
});

test.each([
  [
    { holder: "it's\nme\\", wait: 0.5 },
    /-w 1 \/run\/pulumi-overlay timeout -k 5 2 sh -c .* overlay overlay-feed 'it'\\''s\?me\?'; c=/,
  ],
  [{ holder: "me", wait: 60 }, /flock -o -E 75 -w 60 \/run\/pulumi-overlay timeout -k 5 2 sh -c /],
])("the command that takes the lock for %o", (lock, expected) => {
  const command = lockCommand(mark, lock, 1.5);
  expect(command).toMatch(expected);
  expect(command.indexOf("\n")).toBe(command.length - 1);
  execFileSync("sh", ["-n", "-c", command]);
});
