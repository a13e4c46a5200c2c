"""Counts the bytes of tensors that are alive now, and their peak."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Counts tensors that operators create inside the `with` block. Older tensors are not counted."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        before = {self.name(tensor) for tensor in tree_leaves(arguments) if isinstance(tensor, torch.Tensor)}
        result = operator(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and self.name(tensor) not in before | self.known:
                self.remember(tensor.untyped_storage())
        return result

    def name(self, tensor):
        return tensor.untyped_storage()._cdata

    def remember(self, storage):
        self.known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())

    def forget(self, name, size):
        self.known.discard(name)
        self.now -= size


def count_kept(compute):
    """The bytes that `compute` keeps for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return {data: tensor.untyped_storage().nbytes() for data, tensor in kept.items()}
