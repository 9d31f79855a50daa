#!/bin/sh
# controller.sh LAB NAME MAC ADDRESS/LENGTH…: holds the net and mount namespaces in which pulumi, stores and tests run. It has
# this machine's files, and only loopback and the underlay as networks: no packet for a lab host can leave this machine.
set -eu
lab=$1 name=$2
shift 2

sh "${0%/*}/plug.sh" "$lab" "$name" $$ "$@"
mount -t sysfs sysfs /sys # /sys/class/net of this namespace
mount --bind "$lab/hosts" /etc/hosts

echo ready >&3
exec 3>&-
exec sleep infinity
