"""The device that a process trains on, and what makes it repeatable."""

import os
import shutil
import socket
import subprocess
import warnings

import torch
import torch.distributed as dist

from workload.endings import refuse


def gpu_count():
    """GPUs that processes can train on together. A Mac's is none: gloo cannot reach its memory."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or dist.get_default_backend_for_device(accelerator) == "gloo":
        return 0
    return torch.accelerator.device_count()


def pick_device(number=None):
    """GPU `number` of this machine, or the CPU if it has none."""
    count = gpu_count()
    if count == 0:
        if number is not None and "OMP_NUM_THREADS" not in os.environ:
            # One of several processes. With a thread for every core, they would wait for each other.
            torch.set_num_threads(1)
        return torch.device("cpu")
    number = number or 0
    # After its time limit, NCCL's group takes four such pauses until it ends the
    # process: 15 seconds each, if nothing is said.
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000")
    # The stages of lesson 10 send each other their shapes one by one, as they should.
    os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0")
    if may_share() and number >= count:
        # NCCL wants a GPU for each process of a machine. So it is told that this one is on another.
        os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"
        number %= count
    if number >= count:
        refuse(f"this machine has {count} GPUs and no number {number}: start fewer processes")
    torch.accelerator.set_device_index(number)
    return torch.device(torch.accelerator.current_accelerator().type, number)


def require_precision(precision, device):
    """End with one line if a GPU has no bf16: torch would imitate it, which is slow."""
    if precision != "bf16" or device.type != "cuda":
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        refuse("this GPU has no bf16: start lessons/parts/fp16.py, or use --precision fp32")


def set_seed(seed):
    """Make this process repeatable: the same command gives the same bytes."""
    torch.manual_seed(seed)
    # cuDNN would take whichever kernel is fastest today, and compute with TF32's 10 bits where it can:
    # then no two runs agree to the byte, and two world sizes only to the third digit.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False  # in torch 2.11, the next line does not reach convolutions
    torch.backends.fp32_precision = "ieee"


def random_state(device):
    """What the random number generators of this process go on from, on CPU and GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["gpu"] = torch.get_device_module(device).get_rng_state()
    return states


def set_random_state(states, device):
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and "gpu" in states:  # a run on the CPU has saved none
        torch.get_device_module(device).set_rng_state(states["gpu"])
    # Resumed after an epoch's last step, a run steps its scheduler before its optimizer.
    warnings.filterwarnings("ignore", "Detected call of `lr_")


def may_share():
    """Several processes for each GPU: slower than one, but the lessons can be run where there is only one."""
    return os.environ.get("SHARE_GPU") == "1"


def unseen_gpu():
    """Why torch takes no GPU though NVIDIA's driver has one, in words; None if there is or shall be none."""
    if gpu_count() or os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not shutil.which("nvidia-smi"):
        return None
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    if not listed.startswith("GPU"):
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "torch finds none"
