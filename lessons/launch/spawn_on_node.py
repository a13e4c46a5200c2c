"""One task on each node, which spawns a process for each GPU: the way of many older tutorials.

    START=spawn sbatch lessons/launch/slurm.sbatch

srun starts this once on each node, and mp.spawn starts the processes that train. Each finds its
rank as node x processes on a node + local rank, and then is what an agent of torchrun would have
started: the lesson reads RANK and the rest in its environment. There is no agent, so nothing starts a
process again that has died.
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
    sys.path.insert(0, str(Path(script).parent))  # as `python script` does, or it would not find workload
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    processes, script, *options = sys.argv[1:]
    # SLURM signals this process too. If it died of that, its children would be ended unsaved.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        mp.spawn(worker, (int(processes), script, options), nprocs=int(processes))
    except mp.ProcessExitedException as error:
        # When another node has ended with 75, srun sends the signal again. Python takes its handlers away
        # before it ends, and this process would die of the signal: its node would have failed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # 75 says that the run was told to stop and has saved. The reason for any other status was printed.
        sys.exit(error.exit_code if error.exit_code > 0 else 1)
