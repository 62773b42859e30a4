#!/bin/bash
# As many processes as a hostfile has slots, by Open MPI, started on the first of its hosts:
#   examples/cluster/mpirun.sh HOSTFILE JOB.yaml FOLDER
# FOLDER, new or of the run that goes on, must be one that all hosts see. With a zeroth that is built with
# the tag mpi, MPI carries the data; with any other, sockets.
set -u
most=20 # times to start again
[ -n "${ZEROTH_TOKEN:-}" ] || ZEROTH_TOKEN=$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZEROTH_TOKEN
export ZEROTH_ADDR="${ZEROTH_ADDR:-$(hostname):29400}"

# mpirun itself would leave a process one second from SIGTERM to SIGKILL. A process that gets SIGTERM has all
# of them save and end, so this hands it to those on this host.
stopped= run=$$
trap 'stopped=yes; pkill -TERM -P "$run" -x zeroth' TERM

for ((start = 0; start <= most; start++)); do
  mpirun --hostfile "$1" --bind-to none -x ZEROTH_ADDR -x ZEROTH_TOKEN \
    zeroth train "$2" --out "$3" --resume latest &
  run=$!
  wait $run
  code=$?
  while kill -0 $run 2>/dev/null; do # the trap has cut the wait short
    wait $run
    code=$?
  done
  # 75: there is a checkpoint to go on from, or not all have come. 137: a process was killed.
  if [ -n "$stopped" ] || { [ $code -ne 75 ] && [ $code -ne 137 ]; }; then
    exit $code
  fi
done
exit $code
