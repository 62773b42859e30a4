#!/bin/bash
# Two nodes of four processes:
#   sbatch examples/cluster/slurm.sh JOB.yaml
# With GPUs, one for each process:
#   sbatch --gpus-per-node=4 examples/cluster/slurm.sh JOB.yaml
# Call sbatch in a folder that all nodes share.
#SBATCH --job-name=zeroth
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
# --signal reaches the processes, not this script: 180 s before the time limit they save and end with 75.

most=20 # times to requeue

ZEROTH_TOKEN=$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZEROTH_TOKEN

# Not all versions of srun inherit the processors per task from sbatch. When a process is lost, the others report
# it and end by themselves.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 \
  zeroth train "$1" --out "runs/$SLURM_JOB_NAME-$SLURM_JOB_ID" --resume latest
code=$?

# 75: there is a checkpoint to continue from, or some processes never joined. 137: a process was killed, and the
# others ended with 75.
if [ $code -eq 75 ] || [ $code -eq 137 ]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -lt $most ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit $code
