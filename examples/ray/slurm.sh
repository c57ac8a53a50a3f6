#!/usr/bin/env bash
# FedKeep on the nodes of a Slurm job:   sbatch slurm.sh scaffold+wsm --data mnist --data-root data --out runs/first
#
# Slurm gives the nodes, Ray makes a cluster of them, FedKeep runs on the first one. When the time limit comes or the
# job is requeued, submit the same command again: the run goes on from its last checkpoint. --out must be on a file
# system that the first node of the next job sees, too.
#SBATCH --job-name=fedkeep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
set -euo pipefail

source "${FEDKEEP_VENV:-$HOME/fedkeep}/bin/activate" # the same environment on all nodes, with pip install fedkeep[ray]

export RAY_USAGE_STATS_ENABLED=0
# Nodes of a Slurm cluster have other users: only who has the token may talk to this Ray.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))
pids=()

start() { # NODE OPTIONS
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" \
        ray start --block --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats "${@:2}" &
    pids+=($!)
}

trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 143' INT TERM

start "${nodes[0]}" --head --node-ip-address="$head" --port="$port" --include-dashboard=false
for _ in $(seq 60); do
    python -c "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)" "$head" "$port" 2>/dev/null && break
    sleep 1
done
for node in "${nodes[@]:1}"; do start "$node" --address="$head:$port"; done

fedkeep run "$@" --engine ray --ray-address "$head:$port" # here: this script runs on the first node
