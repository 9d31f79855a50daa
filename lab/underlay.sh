#!/bin/sh
# underlay.sh LAB: holds what the hosts of a lab have in common, in net and mount namespaces of its own: the switch that all
# of them are plugged into, and the tmpfs with their disks. Both vanish with this process; the machine never sees either.
set -eu
lab=$1

ip -batch - <<E
link set lo up
link add underlay type bridge
link set underlay up
E
mount -t tmpfs -o mode=755 disks "$lab/disks"

echo ready >&3
exec 3>&-
exec sleep infinity
