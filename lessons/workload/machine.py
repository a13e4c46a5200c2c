"""The device that a process trains on, and what makes it repeatable."""

import torch
import torch.distributed as dist


def gpu_count():
    """GPUs that processes can train on together. A Mac's is none: gloo cannot reach its memory."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or dist.get_default_backend_for_device(accelerator) == "gloo":
        return 0
    return torch.accelerator.device_count()


def pick_device(number=0):
    """GPU `number` of this machine, or the CPU if it has none."""
    if gpu_count() == 0:
        return torch.device("cpu")
    torch.accelerator.set_device_index(number)
    return torch.device(torch.accelerator.current_accelerator().type, number)


def set_seed(seed):
    """Make this process repeatable: the same command gives the same bytes."""
    torch.manual_seed(seed)
    # cuDNN would take whichever kernel is fastest today, and compute with TF32's 10 bits where it can:
    # then no two runs agree to the byte, and two world sizes only to the third digit.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.fp32_precision = "ieee"
