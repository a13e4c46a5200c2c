"""The device that a process trains on, and the settings that make a run reproducible."""

import os
import shutil
import socket
import subprocess
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from workload.endings import refuse


def gpu_count():
    """The number of usable GPUs. A Mac's GPU does not count, because gloo cannot access its memory."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or dist.get_default_backend_for_device(accelerator) == "gloo":
        return 0
    return torch.accelerator.device_count()


def pick_device(number=None):
    """GPU `number` of this machine, or the CPU if the machine has no GPU."""
    count = gpu_count()
    if count == 0:
        if number is not None and "OMP_NUM_THREADS" not in os.environ:
            # With one thread per core each, several processes would slow each other down.
            torch.set_num_threads(1)
        return torch.device("cpu")
    number = number or 0
    # After a timeout, NCCL's process group pauses four times for this long before it
    # ends the process. By default, each pause is 15 seconds long.
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000")
    # This warning does not apply: lesson 10's stages send their shapes one by one.
    os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0")
    if number >= count and has_gpus_of_its_own():
        number %= count
    if number >= count and may_share():
        # NCCL does not let two processes of a machine share a GPU, so pretend to be another machine.
        os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"
        number %= count
    if number >= count:
        refuse(f"there are {count} GPUs here, and none for process {number}: start fewer processes")
    torch.accelerator.set_device_index(number)
    device = torch.device(torch.accelerator.current_accelerator().type, number)
    require_kernels(device)
    return device


def require_kernels(device):
    """Refuse to start if torch was built for other GPUs: the first kernel would fail."""
    if device.type != "cuda" or torch.version.cuda is None:  # AMD's GPUs have other names
        return
    built_for = torch.cuda.get_arch_list()
    capability = torch.cuda.get_device_capability(device)
    if not built_for or any(runs_on(kind, capability) for kind in built_for):
        return
    cure = "install a build that does"
    if (5, 0) <= capability < (7, 5):
        # The builds for CUDA 13 start at 7.5. The builds for CUDA 12.6 start at 5.0, but torch
        # 2.15 may not have them: https://github.com/pytorch/pytorch/issues/190385
        cure = "install torch's build for CUDA 12.6"
    # With mp.spawn, this variable is not set, and each process would print the error.
    os.environ.setdefault("LOCAL_RANK", str(device.index))
    name, (major, minor) = torch.cuda.get_device_name(device), capability
    refuse(
        f"torch {torch.__version__} does not support this GPU ({name}, compute capability "
        f"{major}.{minor}): {cure}, or put CUDA_VISIBLE_DEVICES=-1 in front of the command "
        "to use the CPU"
    )


def runs_on(kind, capability):
    """Whether code for sm_86 or compute_90, for example, runs on a GPU of this capability."""
    code, number = kind.split("_")
    major, minor = divmod(int(number.rstrip("af")), 10)
    if code == "compute":  # the driver can compile this code for newer GPUs
        return capability >= (major, minor)
    return capability[0] == major and capability[1] >= minor


def require_precision(precision, device):
    """Refuse to start if the GPU has no bf16, because torch would emulate it slowly."""
    if precision != "bf16" or device.type != "cuda":
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        refuse("this GPU has no bf16: start lessons/parts/fp16.py, or use --precision fp32")


def set_seed(seed):
    """Make this process deterministic: the same command writes the same bytes."""
    torch.manual_seed(seed)
    # By default, cuDNN may use kernels that add up in a different order each time, so two runs may differ,
    # and TF32, which keeps 10 bits, so two world sizes agree only to the third digit. With
    # `benchmark = True`, it would also pick the kernel that is fastest at the moment.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False  # in torch 2.11, the next line does not reach convolutions
    torch.backends.fp32_precision = "ieee"


def random_state(device):
    """The states of all random number generators of this process, on CPU and GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["gpu"] = torch.get_device_module(device).get_rng_state()
    return states


def set_random_state(states, device):
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and "gpu" in states:  # a run on the CPU saves no GPU state
        torch.get_device_module(device).set_rng_state(states["gpu"])
    # A run that resumes after an epoch's last step calls scheduler.step() first.
    warnings.filterwarnings("ignore", "Detected call of `lr_")


def may_share():
    """Whether processes may share a GPU. Sharing is slow, but lets all lessons run on a single GPU."""
    return os.environ.get("SHARE_GPU") == "1"


def has_gpus_of_its_own():
    """Whether no other process sees this process's GPUs, as under srun --gpus-per-task=1."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS")
    if tasks is None or tasks != os.environ.get("WORLD_SIZE"):
        return False  # processes that one task has started see the same GPUs
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", tasks))
    return gpu_count() * processes <= int(os.environ.get("SLURM_GPUS_ON_NODE", 0))


def unseen_gpu():
    """The reason why torch cannot use the GPU that a driver lists, or None if there is no problem."""
    if gpu_count() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    if Path("/dev/kfd").exists() and torch.version.hip is None:  # the device of AMD's driver
        return f"torch {torch.__version__} was built without ROCm"
    if not shutil.which("nvidia-smi"):
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
    return "torch finds no GPU"
