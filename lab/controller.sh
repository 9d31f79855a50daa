#!/bin/sh
# controller.sh LAB NAME MAC ADDRESS/LENGTH…: holds the net and mount namespaces of the place that pulumi, stores and tests run in. It
# sees the machine's files, and of networks only loopback and the underlay: nothing meant for a lab host can leave the machine.
set -eu
lab=$1 name=$2
shift 2

sh "${0%/*}/plug.sh" "$lab" "$name" $$ "$@"
mount -t sysfs sysfs /sys # /sys/class/net of this namespace
mount --bind "$lab/hosts" /etc/hosts

echo ready >&3
exec 3>&-
exec sleep infinity
