#!/usr/bin/env bash
# Lesson 06 on one machine: two torchrun launchers, as if they ran on two machines.
#
#   bash lessons/launch/two_terminals.sh          both in this terminal; each line says which one wrote it
#   bash lessons/launch/two_terminals.sh 0        one in this terminal,
#   bash lessons/launch/two_terminals.sh 1        and the other in a second one, in the same folder
#
# What follows goes to the lesson: two_terminals.sh 0 --epochs 20. PROCESSES=2 starts two for each agent.
# Where there are fewer GPUs than processes all use the CPU, or with SHARE_GPU=1 share what there is.
# PORT is where the agents meet; LESSON is another script to start.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lesson=${LESSON:-$here/../06_multinode.py}
processes=${PROCESSES:-1}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# The agent that ends last finds the other's store gone, and would print twenty lines about that.
export TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-ERROR}

agent() {  # agent NODE ARGUMENTS...
    # Each agent counts its GPUs from 0. Without some of its own, both would take the same ones.
    all=${CUDA_VISIBLE_DEVICES-$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p' | tr '\n' ,)}
    IFS=, read -ra gpus <<<"$all"
    if [ "${#gpus[@]}" -ge $((2 * processes)) ]; then
        export CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${gpus[*]:$1*processes:processes}")
    elif [ "${SHARE_GPU-}" != 1 ]; then
        export CUDA_VISIBLE_DEVICES=
    else
        # NCCL refuses two processes of one machine on one GPU, so each launcher gets a machine of its own.
        export NCCL_HOSTID="$HOSTNAME-node$1"
    fi
    exec torchrun --nnodes 1:2 --nproc-per-node "$processes" --max-restarts 3 --rdzv-backend c10d \
        --rdzv-endpoint "localhost:$port" --rdzv-id rungs --rdzv-conf join_timeout=60 \
        "$lesson" "${@:2}"
}

if [ "${1-}" = 0 ] || [ "${1-}" = 1 ]; then
    port=${PORT:-29400}
    agent "$@"
fi
# Below the ports that the system hands out by itself, and another one for every start of this script.
port=${PORT:-$((20000 + $$ % 10000))}
agents=()
for node in 0 1; do
    (agent "$node" "$@") > >(sed -u "s/^/node $node | /") 2> >(sed -u "s/^/node $node | /" >&2) &
    agents+=($!)
done
trap 'kill "${agents[@]}" 2>/dev/null' EXIT INT TERM
status=0
for pid in "${agents[@]}"; do
    wait "$pid" || status=$?
done
wait  # for the last lines
exit $status
