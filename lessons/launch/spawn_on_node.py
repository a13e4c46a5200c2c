"""One task per node, which spawns a process per GPU, as in many older tutorials.

    START=spawn sbatch lessons/launch/slurm.sbatch

srun starts this script once per node, and mp.spawn starts the processes that train. Each process computes
its rank as node x processes per node + local rank, and sets the variables that torchrun would set: the
lesson reads RANK and the other variables from its environment. There is no torchrun launcher, so nothing
restarts a process that has died.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import torch.multiprocessing as mp


def worker(local_rank, per_node, script, options):
    node, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_JOB_NUM_NODES"])
    os.environ["RANK"] = str(node * per_node + local_rank)
    os.environ["WORLD_SIZE"] = str(nodes * per_node)
    os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["LOCAL_WORLD_SIZE"] = str(per_node)
    sys.argv = [script, *options]
    sys.path.insert(0, str(Path(script).parent))  # as `python script` does, so the lesson finds workload
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    processes, script, *options = sys.argv[1:]
    # SLURM signals this process too. If it died, its children would be ended before they save.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        mp.spawn(worker, (int(processes), script, options), nprocs=int(processes))
    except mp.ProcessExitedException as error:
        # When another node has ended with 75, srun sends the signal again. Python removes its handlers before
        # it exits, so the signal would kill this process, and its node would count as failed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # 75 means that the run was told to stop and has saved. The reason for any other status was printed.
        sys.exit(error.exit_code if error.exit_code > 0 else 1)
