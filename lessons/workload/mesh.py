"""A device mesh whose groups have the same timeout as the default process group."""

import torch.distributed as dist


def make_mesh(device, **sizes):
    """A mesh with these dimensions: make_mesh(device, data=2, tensor=2)."""
    options = dist.group.WORLD._get_backend(device).options
    limits = {name: type(options)() for name in sizes}
    for limit in limits.values():
        # By default, the groups of a mesh time out after 30 minutes (NCCL: 10). Setting a timeout
        # after a group exists does not affect gloo's point-to-point messages.
        limit._timeout = options._timeout
    shape, names = tuple(sizes.values()), tuple(sizes)
    options = {"mesh_dim_names": names, "backend_override": limits}
    return dist.init_device_mesh(device.type, shape, **options)
