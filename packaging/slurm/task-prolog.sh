#!/bin/sh
# Slurm's TaskProlog (slurm.conf: TaskProlog=/opt/tendril/lib/slurm/task-prolog.sh): a task's OpenCL programs get as many
# devices of their node as Slurm gives the job GPUs there, for themselves alone. What it prints as "export NAME=value"
# becomes the task's environment. TENDRIL_SLURM_DEVICES chooses which devices (tendril run --device); default: GPUs.
set -eu
count=${SLURM_GPUS_ON_NODE:-0}
[ "$count" -gt 0 ] || exit 0
tendril env --lease "$count" --wait=block --device "${TENDRIL_SLURM_DEVICES:-type=gpu}" | sed "s/='\(.*\)'\$/=\1/"
