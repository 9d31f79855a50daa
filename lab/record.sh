#!/bin/sh
# record.sh FILE COMMAND…: notes "PID START" of this process in FILE and becomes COMMAND. The process writes it itself, before
# anything else, so that no moment exists in which a killed run leaves a process that is not on record. START, the 22nd field
# of /proc/PID/stat, tells it from a later process with the same number; both are the machine's, since /proc still is.
set -eu
read -r stat </proc/self/stat
file=$1
shift
fields() { echo "$1 ${22}"; }
# shellcheck disable=SC2086 # the line is to be split
fields $stat >"$file.new"
mv "$file.new" "$file"
exec "$@"
