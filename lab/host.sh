#!/bin/sh
# host.sh LAB NAME LATE MAC ADDRESS/LENGTH…: pid 1 of a lab host, in net, mount, pid, uts and ipc namespaces of its own, with
# access to the lab's disks. The host's disk is an overlay over this machine's root file system, so that all its tools are
# there; writes stay on the host's disk. sshd starts LATE seconds after the rest.
set -eu
umask 022
lab=$1 name=$2 late=$3
shift 3

sh "${0%/*}/plug.sh" "$lab" "$name" 1 "$@"
echo "$name" >/proc/sys/kernel/hostname
echo 0 >/proc/sys/net/ipv4/ip_forward # a new namespace inherits it from this machine, which may be a router

# The disk survives a reboot of the host. Without one, the host is new.
disk=$lab/disks/$name
new=
[ -d "$disk" ] || new=yes
mkdir -p "$disk/upper" "$disk/work" "$disk/merged" "$disk/root" "$disk/home"
mount -t overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" overlay "$disk/merged"
cd "$disk/merged"

# Files of this machine that a host must not have. root's .bashrc would slow down every SSH command.
mkdir -p root home run tmp
mount --bind "$disk/root" root
mount --bind "$disk/home" home
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 dev dev
for device in null zero full random urandom tty net; do
  [ ! -e "/dev/$device" ] || cp -a "/dev/$device" dev/
done
mkdir -p run/sshd run/lock run/old dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

if [ "$new" ]; then
  rm -rf etc/overlay var/lib/overlay
  rm -f etc/ssh/ssh_host_*
  key=$lab/keys/$name # outside the disk: a rebuilt host keeps its host key
  [ -f "$key" ] || ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$key"
  cp "$key" etc/ssh/ssh_host_ed25519_key
  cp "$key.pub" etc/ssh/ssh_host_ed25519_key.pub
  # At INFO the log has one "Accepted publickey" line for each connection; the limits let hundreds come at once.
  cat >etc/ssh/sshd_config <<C
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
LogLevel INFO
MaxStartups 1000
MaxSessions 1000
Subsystem sftp internal-sftp
C
  echo "$name" >etc/hostname
  cp "$lab/hosts" etc/hosts
  # ops: a user other than root, which may use sudo if it is installed.
  echo 'ops:x:1999:1999:ops:/home/ops:/bin/sh' >>etc/passwd
  echo 'ops:*:19000:0:99999:7:::' >>etc/shadow
  echo 'ops:x:1999:' >>etc/group
  [ ! -d etc/sudoers.d ] || echo 'ops ALL=(ALL) NOPASSWD: ALL' >etc/sudoers.d/ops
  mkdir -p -m 700 root/.ssh home/ops home/ops/.ssh
  cp "$lab/keys/id.pub" root/.ssh/authorized_keys
  cp "$lab/keys/id.pub" home/ops/.ssh/authorized_keys
  chmod 700 root
  chown -R 1999:1999 home/ops
fi

pivot_root . run/old
cd /
umount -l /run/old
rmdir /run/old

start_sshd() {
  /usr/sbin/sshd -E /run/sshd.log
  for _ in $(seq 500); do
    [ ! -s /run/sshd.pid ] || return 0 # written once it listens
    sleep 0.02
  done
  cat /run/sshd.log >&2
  return 1
}
if [ "$late" = 0 ]; then start_sshd; else { sleep "$late" && start_sshd; } 3>&- & fi

echo ready >&3
exec 3>&- >/run/console.log 2>&1
# Pid 1 stays, adopts orphaned processes, and exits on SIGTERM.
trap 'exit 0' TERM
while :; do
  sleep infinity &
  wait $! || :
done
