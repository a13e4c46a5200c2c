"""The smallest script that may abort when its work is done: the functions in torch.distributed.nn keep the
group that there is when they are imported, and with it gloo's worker threads."""

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    import torch.distributed.nn

    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
