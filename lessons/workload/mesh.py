"""A mesh of processes whose groups all have the time limit of the process group."""

import torch.distributed as dist


def make_mesh(device, **sizes):
    """A mesh of these sizes: make_mesh(device, data=2, tensor=2). The last has neighbours."""
    options = dist.group.WORLD._get_backend(device).options
    limits = {name: type(options)() for name in sizes}
    for limit in limits.values():
        # By default a group of a mesh waits 30 minutes (NCCL: 10). A limit that is set
        # once the group exists does not reach gloo's point-to-point messages.
        limit._timeout = options._timeout
    shape, names = tuple(sizes.values()), tuple(sizes)
    return dist.init_device_mesh(device.type, shape, mesh_dim_names=names, backend_override=limits)
