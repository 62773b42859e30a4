#!/bin/bash
# Two nodes of four processes:
#   sbatch examples/cluster/slurm.sh JOB.yaml
# The folder in which sbatch is called must be one that all nodes see.
#SBATCH --job-name=zeroth
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
# --signal reaches the processes, not this script: 180 s before the time is over they save and end with 75.

most=20 # times to be queued again

ZEROTH_TOKEN=$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZEROTH_TOKEN

# srun does not take over the processors of a task from sbatch in all versions. Who is left says who was
# lost and ends by itself.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 \
  zeroth train "$1" --out "runs/$SLURM_JOB_NAME-$SLURM_JOB_ID" --resume latest
code=$?

# 75: there is a checkpoint to go on from, or not all have come. 137: a process was killed, and the others
# have said 75.
if [ $code -eq 75 ] || [ $code -eq 137 ]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -lt $most ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit $code
