"""What a process sends in each dimension of a mesh, for the scripts of notebook 17 and a test."""

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

DIMENSIONS = ("data", "pipeline", "context", "tensor")


class Sent(TorchDispatchMode):
    """For each dimension: how many sends and collectives this process starts, and their bytes."""

    def __init__(self):
        super().__init__()
        self.found = {name: {} for name in DIMENSIONS}

    def add(self, group, kind, tensors):
        if dist.get_world_size(group) > 1:  # a single process sends nothing
            counts = self.found[group.group_desc.removeprefix("mesh_")].setdefault(kind, [0, 0])
            counts[0] += 1
            counts[1] += sum(tensor.nbytes for tensor in tensors)

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        kind = operator.__name__.partition(".")[0].strip("_").replace("_", "")
        if operator.namespace == "_c10d_functional" and isinstance(arguments[-1], str):  # else it waits
            group = dist.distributed_c10d._resolve_process_group(arguments[-1])
            self.add(group, kind, arguments[:1])
        elif operator.namespace == "c10d" and kind != "recv":
            self.add(dist.ProcessGroup.unbox(arguments[1]), kind, arguments[0])
        return operator(*arguments, **(options or {}))
