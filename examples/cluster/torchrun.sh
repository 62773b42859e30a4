#!/bin/bash
# Two hosts of four processes, by torchrun; the same command on both:
#   examples/cluster/torchrun.sh NODE0 JOB.yaml FOLDER
# NODE0 is the name of the first host, FOLDER a folder that both share, and ZEROTH_TOKEN_FILE a file on both with
# the same secret:
#   openssl rand -hex 32 >token
set -eu
export ZEROTH_TOKEN_FILE="${ZEROTH_TOKEN_FILE:?want a file with the secret of the job}"

# Seconds from SIGTERM to SIGKILL, for a step and a checkpoint (default 30).
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=180

# torchrun restarts all processes after any exit code, and itself ends with 1: to decide whether to
# queue this again, look for a checkpoint in FOLDER/ckpt.
exec torchrun --nnodes 2 --nproc-per-node 4 --max-restarts 20 \
  --rdzv-backend c10d --rdzv-endpoint "$1:29500" --rdzv-id job \
  --no-python zeroth train "$2" --out "$3" --resume latest
