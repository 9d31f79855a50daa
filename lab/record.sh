#!/bin/sh
# record.sh FILE COMMAND…: writes "PID START" of this process to FILE and executes COMMAND. The process writes it itself, before
# anything else, so that a killed run never leaves a process without a record. START, the 22nd field of /proc/PID/stat,
# distinguishes it from a later process with the same pid; both are of the initial pid namespace.
set -eu
read -r stat </proc/self/stat
file=$1
shift
fields() { echo "$1 ${22}"; }
# shellcheck disable=SC2086 # the line is to be split
fields $stat >"$file.new"
mv "$file.new" "$file"
exec "$@"
