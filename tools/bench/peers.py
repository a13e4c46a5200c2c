"""Other people's training loops on lesson 04's work: the same model, images, batches and optimizer, on CPUs.

    git clone https://github.com/pytorch/examples; git clone https://github.com/LambdaLabsML/distributed-training-guide
    python tools/bench/bench.py --only "two processes" --peers .

Their scripts run as they are. What is replaced around them: CUDA by the CPU, NCCL by gloo, their model and data
by ours, AdamW by SGD, bf16 by fp32, and torch.compile by nothing.

    peers.py SCRIPT ...    run one of their scripts so; KILL_AT=30 kills process 1 at this step, once
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import launcher
import rows

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
        words = [sys.executable, Path(__file__), path, *options]
        if processes > 1:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            words = [*torchrun, "--nproc-per-node", processes, "--max-restarts", 1, *words[1:]]
        return words

    def run(empty):
        began = time.time()
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        _, stderr = rows.finish(rows.start(command(), empty / "run", **own))
        step = sum(rows.said(stderr, "stepped").values())
        found = {"images a second": 120 / step, "first step": rows.said(stderr, "first") - began}
        if name in RESTARTING:
            _, stderr = rows.finish(rows.start(command(), empty / "killed", KILL_AT=str(KILL_AT), **own))
            found["after a kill"] = rows.said(stderr, "again") - rows.said(stderr, "killed")
        return {"peers": {name: found}}

    return run


# ---- around their script ------------------------------------------------------------------------


def tell(what, value):
    print(json.dumps({what: value}), file=sys.stderr, flush=True)


def note_steps(torch):
    """Tell when the first step is over, and kill process 1 at step KILL_AT."""
    rank, restarts = (int(os.environ.get(name, "0")) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
    kill_at, count = int(os.environ.get("KILL_AT", "0")), 0

    def after_a_step(optimizer, args, kwargs):
        nonlocal count
        count += 1
        if count == 1 and rank == 0:
            tell("again" if restarts else "first", time.time())
        if kill_at and count == kill_at and rank == 1 and not restarts:
            tell("killed", time.time())
            os.kill(os.getpid(), signal.SIGKILL)

    torch.optim.optimizer.register_optimizer_step_post_hook(after_a_step)


def digits():
    import workload

    images = workload.draw_digits(12_000, seed=1)
    return list(zip(images.images, images.labels, strict=True))


def instead_of_cuda(torch):
    """Whatever names CUDA gets the CPU, and NCCL becomes gloo."""
    dist, parallel, device_class = torch.distributed, torch.nn.parallel, torch.device

    class OnCpu(type(device_class)):
        def __instancecheck__(cls, value):
            return isinstance(value, device_class)

    class Device(metaclass=OnCpu):
        def __new__(cls, *words):
            return device_class("cpu")

    def without_devices(function, names):
        def call(*arguments, **options):
            return function(*arguments, **{name: option for name, option in options.items() if name not in names})

        return call

    def stays(self, *words, **options):
        """The `to` of a tensor or module that is on the CPU already."""
        return self

    torch.device = Device
    torch.Tensor.to = torch.nn.Module.to = stays
    meet = without_devices(dist.init_process_group, ("backend", "device_id"))
    dist.init_process_group = lambda *words, **options: meet("gloo", **options)
    wrapped = without_devices(parallel.DistributedDataParallel, ("device_ids",))
    parallel.DistributedDataParallel = wrapped
    torch.nn.parallel.distributed.DistributedDataParallel = wrapped
    torch.cuda.set_device = torch.cuda.synchronize = lambda *words: None
    torch.cuda.device_count = lambda: 8
    torch.cuda.reset_peak_memory_stats = lambda *words: None
    kinds = [f"{kind}_bytes.all.{when}" for kind in ("allocated", "reserved") for when in ("current", "peak")]
    torch.cuda.memory_stats = lambda *words: dict.fromkeys(kinds, 0)
    torch.cuda.get_device_properties = lambda *words: SimpleNamespace(total_memory=0)
    torch.compile = lambda model: model


def our_job(torch):
    """Their names for the model, the data and the optimizer, with ours behind them."""
    import workload

    functional = torch.nn.functional

    class Model(workload.ConvNet):
        """Takes and returns what the guide's language model does."""

        def forward(self, images, labels=None):
            outputs = super().forward(images)
            if labels is None:
                return outputs
            return SimpleNamespace(loss=functional.cross_entropy(outputs, labels))

    class Sgd(torch.optim.SGD):
        def __init__(self, parameters, lr=0.04, fused=None, momentum=0.9):
            super().__init__(parameters, lr=0.04, momentum=0.9)

    def model(*words, **options):
        return Model((1, 28, 28))

    def batch_of(samples):
        images, labels = zip(*[sample.values() for sample in samples], strict=True)
        return {"images": torch.stack(images), "labels": torch.stack(labels)}

    torch.optim.AdamW = Sgd
    datautils = ModuleType("datautils")
    datautils.MyTrainDataset = lambda size: digits()
    made = SimpleNamespace(from_pretrained=lambda *words, **options: SimpleNamespace(), from_config=model)
    transformers = ModuleType("transformers")
    transformers.AutoConfig = transformers.AutoModelForCausalLM = transformers.AutoTokenizer = made
    transformers.default_data_collator = batch_of
    sys.modules |= {"datautils": datautils, "transformers": transformers, "datasets": ModuleType("datasets")}
    return model, Sgd


def theirs(script, torch):
    """The names of their script with our job in them."""
    names = runpy.run_path(str(script), run_name="theirs")
    model, sgd = our_job(torch)
    space = names["main"].__globals__
    if "load_train_objs" in names:

        def load_train_objs():
            made = model()
            return digits(), made, sgd(made.parameters())

        space["load_train_objs"] = load_train_objs
    else:
        space["_load_and_preprocess_data"] = lambda *words: [
            {"images": image, "labels": label} for image, label in digits()
        ]
    return space


def main(script, options):
    import torch
    import torch.distributed.nn  # noqa: F401, before there is a group: its functions would keep the group

    torch.set_num_threads(1)
    sys.path.insert(0, str(rows.HERE))
    import steps

    note_steps(torch)
    steps.clock()
    sys.argv = [str(script), *options]
    if launcher.ROOT in script.parents:
        runpy.run_path(str(script), run_name="__main__")
        return
    instead_of_cuda(torch)
    our_job(torch)
    space = theirs(script, torch)
    if script.name == "single_gpu.py":
        epochs, save_every, _, batch = options
        space["main"]("cpu", int(epochs), int(save_every), int(batch))
    elif script.name == "multigpu_torchrun.py":
        epochs, save_every, _, batch = options
        space["main"](int(save_every), int(epochs), int(batch))
    else:
        space["main"]()
    with contextlib.suppress(Exception):  # not all of them end their group
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
