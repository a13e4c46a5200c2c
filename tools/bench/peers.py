"""Other people's training loops on lesson 04's work: the same model, images, batches and optimizer, on CPUs.

    git clone https://github.com/pytorch/examples; git clone https://github.com/LambdaLabsML/distributed-training-guide
    python -m tools.bench.bench --only "two processes" --peers .

their_script.py runs each script as it is, and says what it replaces around it.
"""

import sys
import time

from tools import launcher
from tools.bench import rows

SERIES = "examples/distributed/ddp-tutorial-series"
GUIDE = "distributed-training-guide"
OPTIONS_OF_GUIDE = ("--dataset-name", "x", "--model-name", "x", "--num-epochs", 2, "--log-freq", 1000)
OPTIONS_OF_GUIDE += ("--experiment-name", "e", "--save-dir", "saved", "--ckpt-freq", 20)
FRAMEWORKS = launcher.ROOT / "lessons/frameworks"
SCRIPTS = {  # by name: the script, the number of processes and the options
    "ddp-tutorial-series, 1": (f"{SERIES}/single_gpu.py", 1, (2, 1, "--batch_size", 120)),
    "ddp-tutorial-series, 2": (f"{SERIES}/multigpu_torchrun.py", 2, (2, 1, "--batch_size", 60)),
    "distributed-training-guide, 1": (
        f"{GUIDE}/01-single-gpu/train_llm.py",
        1,
        ("--batch-size", 120, *OPTIONS_OF_GUIDE),
    ),
    "distributed-training-guide, 2": (
        f"{GUIDE}/02-distributed-data-parallel/train_llm.py",
        2,
        ("--batch-size", 60, *OPTIONS_OF_GUIDE),
    ),
    "Accelerate, 2": (FRAMEWORKS / "accelerate_ddp.py", 2, rows.OWN),
    "Lightning Fabric, 2": (FRAMEWORKS / "fabric_ddp.py", 2, rows.OWN),
    "lesson 01, 1": (launcher.ROOT / "lessons/01_single_gpu.py", 1, rows.OWN),
    "lesson 04, 2": (launcher.ROOT / "lessons/04_ddp_torchrun.py", 2, rows.OWN),
    "lesson 06b, 2": (launcher.ROOT / "lessons/06b_preemption.py", 2, (*rows.OWN, "--snapshot-every", 20)),
}
RESTARTING = ("ddp-tutorial-series, 2", "distributed-training-guide, 2", "lesson 06b, 2")
KILL_AT = 130  # in the second epoch, so that each of them has saved something


def measures(folder):
    """By name, what measures a script: images per second, seconds to the first step, and after a kill."""
    return {name: measure(name, folder) for name in SCRIPTS if (folder / SCRIPTS[name][0]).exists()}


def measure(name, folder):
    script, processes, options = SCRIPTS[name]
    path = (folder / script).resolve()

    def command():
        words = [sys.executable, rows.HERE / "their_script.py", path, *options]
        if processes > 1:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            words = [*torchrun, "--nproc-per-node", processes, "--max-restarts", 1, *words[1:]]
        return words

    def run(empty):
        began = time.time()
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if path.name == "fabric_ddp.py":  # what `fabric run` says
            own |= {
                "LT_CLI_USED": "1",
                "LT_ACCELERATOR": "cpu",
                "LT_DEVICES": str(processes),
                "LT_NUM_NODES": "1",
            }
        _, stderr = rows.finish(rows.start(command(), empty / "run", **own))
        step = sum(rows.said(stderr, "stepped").values())
        found = {"images a second": 120 / step, "first step": rows.said(stderr, "first") - began}
        if name in RESTARTING:
            _, stderr = rows.finish(rows.start(command(), empty / "killed", KILL_AT=str(KILL_AT), **own))
            found["after a kill"] = rows.said(stderr, "again") - rows.said(stderr, "killed")
        return {"peers": {name: found}}

    return run
