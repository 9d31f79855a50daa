import { expect } from "vitest";
import type { CommandResult } from "../../provider/host/connection";

/** Locks every file and directory of /run and of our records that an unprivileged user can open, for a minute. */
const HOLD_ALL = `
umask 077
user='setpriv --reuid=4201 --regid=4200 --clear-groups'
rm -f /run/user-*; mkfifo -m 622 /run/user-locks
paths=$($user find /run /var/lib/overlay -readable \\( -type d -o -type f \\) 2>/dev/null)
for path in $paths; do
  setsid $user flock "$path" sh -c "echo '$path' >/run/user-locks; exec sleep 60" </dev/null >/dev/null 2>&1 &
done
exec 3<>/run/user-locks # with a writer of its own, so that there is no end of file before the last line
head -n "$(echo "$paths" | wc -l)" <&3 | sort
`;

export async function holdAllAsUser(exec: (script: string) => Promise<CommandResult>): Promise<void> {
  const held = (await exec(HOLD_ALL)).stdout.split("\n");
  expect(held).toContain("/run");
  expect(held).not.toContain("/run/pulumi-overlay");
}
