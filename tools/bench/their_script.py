"""Run another tutorial's training script on lesson 04's work: their_script.py SCRIPT OPTIONS

The script runs as it is. What is replaced around it: CUDA by the CPU, NCCL by gloo, its model and data by
ours, its optimizer by SGD with momentum, bf16 by fp32; torch.compile and the end of the group do nothing.
Around our own scripts nothing is replaced. Process 0 reports its first step and how its steps spend their
time.

KILL_AT=30 kills process 1 at this step, once.
"""

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import steps
import torch
import torch._dynamo  # the first optimizer imports it, and it must not find what is replaced here
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions would keep the group and its threads
from torch.optim.optimizer import register_optimizer_step_post_hook

import workload

ROOT = Path(__file__).resolve().parents[2]


def tell(what, value):
    # A progress bar leaves its line open.
    print(f"\n{json.dumps({what: value})}", file=sys.stderr, flush=True)


def note_steps():
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

    register_optimizer_step_post_hook(after_a_step)


def digits():
    images = workload.draw_digits(12_000, seed=1)
    return list(zip(images.images, images.labels, strict=True))


class OnCpus(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, module, device_ids=None, **options):
        super().__init__(module, **options)


def instead_of_cuda():
    """Whatever names CUDA gets the CPU, and NCCL becomes gloo."""
    device_class = torch.device

    class OnCpu(type(device_class)):
        def __instancecheck__(cls, value):
            return isinstance(value, device_class)

    class Device(metaclass=OnCpu):
        def __new__(cls, *words):
            return device_class("cpu")

    def stays(self, *words, **options):
        """The `to` of a tensor or module that is on the CPU already."""
        return self

    torch.device = Device
    torch.Tensor.to = torch.nn.Module.to = stays
    meet = dist.init_process_group
    dist.init_process_group = lambda backend=None, device_id=None, **options: meet("gloo", **options)
    # A gloo group that ends right after DDP's last step may wait for its own thread forever.
    dist.destroy_process_group = lambda: None
    torch.nn.parallel.DistributedDataParallel = OnCpus
    load = torch.load
    torch.load = lambda file, map_location=None, **options: load(file, map_location="cpu", **options)
    torch.cuda.set_device = torch.cuda.synchronize = lambda *words: None
    torch.cuda.device_count = lambda: 8
    torch.cuda.reset_peak_memory_stats = lambda *words: None
    kinds = [f"{kind}_bytes.all.{when}" for kind in ("allocated", "reserved") for when in ("current", "peak")]
    torch.cuda.memory_stats = lambda *words: dict.fromkeys(kinds, 0)
    torch.cuda.get_device_properties = lambda *words: SimpleNamespace(total_memory=0)
    torch.compile = lambda model: model


def our_job():
    """Their names for the model, the data and the optimizer, with ours behind them."""
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


def theirs(script):
    """The names of their script with our job in them."""
    model, sgd = our_job()
    names = runpy.run_path(str(script), run_name="theirs")
    functions = [value for value in names.values() if isinstance(value, FunctionType)]
    # A decorated main() has the globals of its decorator.
    space = next(each.__globals__ for each in functions if each.__globals__["__name__"] == "theirs")
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
    torch.set_num_threads(1)
    note_steps()
    report = steps.clock()
    sys.argv = [str(script), *options]
    if ROOT in script.parents:
        runpy.run_path(str(script), run_name="__main__")
        return
    instead_of_cuda()
    space = theirs(script)
    if script.name == "single_gpu.py":
        epochs, save_every, _, batch = options
        space["main"]("cpu", int(epochs), int(save_every), int(batch))
    elif script.name == "multigpu_torchrun.py":
        epochs, save_every, _, batch = options
        space["main"](int(save_every), int(epochs), int(batch))
    else:
        space["main"]()
    report()
    sys.stdout.flush()
    os._exit(0)  # the group was not ended, so its threads still run


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
