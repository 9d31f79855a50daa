#!/bin/sh
# docker.sh start|stop PARENT: runs this machine's dockerd on a lab host. Its data is on the host's disk, its cgroups are under
# PARENT, and it has an image `busybox` without a registry.
set -eu
parent=$2

controllers() {
  mountpoint -q /sys/fs/cgroup && return
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  if awk '$1 == "memory" && $2 == 0 { exit 1 }' /proc/cgroups; then # version 1: the machine has bound them to hierarchies
    for name in cpu cpuacct cpuset memory devices freezer blkio pids; do
      mkdir "/sys/fs/cgroup/$name"
      mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name"
    done
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
  else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
  fi
}

start() {
  controllers
  mkdir -p /var/lib/docker
  mountpoint -q /var/lib/docker || mount -t tmpfs -o size=400m tmpfs /var/lib/docker
  setsid dockerd --data-root /var/lib/docker --exec-root /run/docker -H unix:///run/docker.sock \
    --pidfile /run/docker.pid --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "$parent" \
    >/run/dockerd.log 2>&1 </dev/null &
  for _ in $(seq 300); do
    if docker version >/dev/null 2>&1; then image; return; fi
    kill -0 $! 2>/dev/null || break
    sleep 0.1
  done
  tail -20 /run/dockerd.log >&2
  exit 1
}

image() {
  [ -z "$(docker images -q busybox)" ] || return 0
  mkdir -p /tmp/image/bin
  cp "$(command -v busybox)" /tmp/image/bin/
  for name in sh sleep ping ip; do ln -sf busybox "/tmp/image/bin/$name"; done
  tar -C /tmp/image -c . | docker import - busybox >/dev/null
}

stop() {
  [ -e /run/docker.pid ] || return 0
  kill "$(cat /run/docker.pid)"
  for _ in $(seq 300); do
    if [ ! -e /run/docker.pid ]; then
      find /sys/fs/cgroup -depth -type d -path "*$parent*" -exec rmdir {} + 2>/dev/null || :
      return
    fi
    sleep 0.1
  done
  tail -20 /run/dockerd.log >&2
  exit 1
}

"$1"
