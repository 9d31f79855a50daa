#!/bin/sh
# underlay.sh LAB: holds net and mount namespaces for what the hosts of a lab share: the switch, and the tmpfs with their disks.
# Both end with this process; this machine's own namespaces do not have them.
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
