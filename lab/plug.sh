#!/bin/sh
# plug.sh LAB PORT PID MAC ADDRESS/LENGTH…: a veth pair from PORT of the lab's switch to eth0 of this network namespace, with these
# addresses. PID is a process of this namespace, by its number in the caller's pid namespace.
set -eu
lab=$1 port=$2 pid=$3 mac=$4
shift 4

read -r underlay _ <"$lab/processes/underlay"
nsenter --net="/proc/$underlay/ns/net" \
  ip link add "$port" master underlay up type veth peer name eth0 address "$mac" netns "$pid"
{
  echo link set lo up
  for address; do
    case $address in
    *:*) echo addr add "$address" dev eth0 nodad ;;
    *) echo addr add "$address" dev eth0 ;;
    esac
  done
  echo link set eth0 up
} | ip -batch -
