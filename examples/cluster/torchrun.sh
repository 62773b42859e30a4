#!/bin/bash
# Two hosts of four processes, by torchrun; the same command on both:
#   examples/cluster/torchrun.sh NODE0 JOB.yaml FOLDER
# NODE0 is the name of the first host, FOLDER one that both see, and ZEROTH_TOKEN_FILE a file on both with
# the same secret:
#   openssl rand -hex 32 >token
set -eu
export ZEROTH_TOKEN_FILE="${ZEROTH_TOKEN_FILE:?want a file with the secret of the job}"

# From SIGTERM to SIGKILL: a step and a checkpoint. 30 s unless said.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=180

# torchrun knows one policy, to start all again, whatever the exit code was, and itself ends with 1: who
# queues this again looks for a checkpoint in FOLDER/ckpt.
exec torchrun --nnodes 2 --nproc-per-node 4 --max-restarts 20 \
  --rdzv-backend c10d --rdzv-endpoint "$1:29500" --rdzv-id job \
  --no-python zeroth train "$2" --out "$3" --resume latest
