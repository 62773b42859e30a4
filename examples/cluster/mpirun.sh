#!/bin/bash
# One process per slot of a hostfile, by Open MPI. Start it on the first of the hosts:
#   examples/cluster/mpirun.sh HOSTFILE JOB.yaml FOLDER
# FOLDER is new or that of the run to continue, and shared by all hosts. If zeroth was built with
# the tag mpi, MPI carries the data; otherwise, sockets do.
set -u
most=20 # restarts
[ -n "${ZEROTH_TOKEN:-}" ] || ZEROTH_TOKEN=$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZEROTH_TOKEN
export ZEROTH_ADDR="${ZEROTH_ADDR:-$(hostname):29400}"

# mpirun itself would allow a process one second between SIGTERM and SIGKILL. A process that gets SIGTERM makes
# all others save and end, so this script forwards it to those on this host.
stopped= run=$$
trap 'stopped=yes; pkill -TERM -P "$run" -x zeroth' TERM

for ((start = 0; start <= most; start++)); do
  mpirun --hostfile "$1" --bind-to none -x ZEROTH_ADDR -x ZEROTH_TOKEN \
    zeroth train "$2" --out "$3" --resume latest &
  run=$!
  wait $run
  code=$?
  while kill -0 $run 2>/dev/null; do # the trap interrupted the wait
    wait $run
    code=$?
  done
  # 75: there is a checkpoint to continue from, or some processes never joined. 137: a process was killed.
  if [ -n "$stopped" ] || { [ $code -ne 75 ] && [ $code -ne 137 ]; }; then
    exit $code
  fi
done
exit $code
