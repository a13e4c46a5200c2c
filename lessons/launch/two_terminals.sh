#!/usr/bin/env bash
# Lesson 06 on one machine: two torchrun launchers, as if they ran on two machines.
#
#   bash lessons/launch/two_terminals.sh          both in this terminal; each line says which one wrote it
#   bash lessons/launch/two_terminals.sh 0        one in this terminal,
#   bash lessons/launch/two_terminals.sh 1        and the other in a second one, in the same folder
#
# SCRIPT=my.py starts your own script instead of lesson 06.
# Other arguments go to the script: two_terminals.sh 0 --epochs 20. PROCESSES=2 starts two processes per launcher.
# With fewer GPUs than processes, all processes use the CPU, or share the GPUs if you set SHARE_GPU=1.
# PORT is the port where the launchers meet.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=${SCRIPT:-$here/../06_multinode.py}
processes=${PROCESSES:-1}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# The launcher that ends last finds the other launcher's store gone, and would print twenty lines about that.
export TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-ERROR}

launch() {  # launch NODE ARGUMENTS...
    # Each launcher counts its GPUs from 0. Without GPUs of their own, both would use the same ones.
    all=${CUDA_VISIBLE_DEVICES-}
    if [ -z "${CUDA_VISIBLE_DEVICES+set}" ] && { type nvidia-smi || [ -e /dev/kfd ] || [ -e /dev/dxg ]; } >/dev/null 2>&1
    then  # a driver of NVIDIA, of AMD, or of WSL
        all=$(python -c 'import torch; print(*range(torch.cuda.device_count()), sep=",")')
    fi
    IFS=, read -ra gpus <<<"$all"
    if [ "${#gpus[@]}" -ge $((2 * processes)) ]; then
        export CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${gpus[*]:$1*processes:processes}")
    elif [ "${SHARE_GPU-}" != 1 ]; then
        export CUDA_VISIBLE_DEVICES=-1  # AMD's library takes an empty one for none
    else
        # NCCL refuses two processes of one machine on one GPU, so each launcher gets a machine of its own.
        export NCCL_HOSTID="$HOSTNAME-node$1"
    fi
    exec torchrun --nnodes 1:2 --nproc-per-node "$processes" --max-restarts 3 --rdzv-backend c10d \
        --rdzv-endpoint "localhost:$port" --rdzv-id rungs --rdzv-conf join_timeout=60 --local-addr localhost \
        "$script" "${@:2}"
}

if [ "${1-}" = 0 ] || [ "${1-}" = 1 ]; then
    port=${PORT:-29400}
    launch "$@"
fi
# Below the ports that the system hands out by itself, and another one for every start of this script.
port=${PORT:-$((20000 + $$ % 10000))}
launchers=()
for node in 0 1; do
    (launch "$node" "$@") > >(sed -u "s/^/node $node | /") 2> >(sed -u "s/^/node $node | /" >&2) &
    launchers+=($!)
done
trap 'kill "${launchers[@]}" 2>/dev/null' EXIT INT TERM
status=0
for pid in "${launchers[@]}"; do
    wait "$pid" || status=$?
done
wait  # for the last lines
exit $status
