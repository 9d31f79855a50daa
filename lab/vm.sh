#!/bin/sh
# vm.sh LAB NAME MAC IMAGE: an emulated machine on the lab's switch, in the switch's network namespace. Its disk is
# copy-on-write over IMAGE; its name, keys and addresses are on a second disk. Ending this process is a power cut. Software
# emulation works everywhere; KVM is used only with VM_ACCEL=kvm, because it may exist and not work.
set -eu
lab=$1 name=$2 mac=$3 image=$4

ip link del "$name" 2>/dev/null || : # its port, after a power cut
ip tuntap add "$name" mode tap
ip link set "$name" master underlay up
disk=$lab/vms/$name.qcow2
[ -f "$disk" ] || qemu-img create -q -f qcow2 -b "$image/base.img" -F raw "$disk"

echo ready >&3
exec 3>&-
exec nice -n 15 qemu-system-x86_64 -accel "${VM_ACCEL:-tcg,thread=multi}" -cpu max -m 1024 -smp 1 -nodefaults -display none \
  -serial "file:$lab/logs/$name.console" -kernel "$image/vmlinuz" -initrd "$image/initrd.img" \
  -append "console=ttyS0 root=/dev/vda rw net.ifnames=0 systemd.hostname=$name quiet" \
  -drive "file=$disk,if=virtio,format=qcow2" -drive "file=$lab/vms/$name.tar,if=virtio,format=raw,readonly=on" \
  -netdev "tap,id=net,ifname=$name,script=no,downscript=no" -device "virtio-net-pci,netdev=net,mac=$mac" \
  -device virtio-rng-pci
