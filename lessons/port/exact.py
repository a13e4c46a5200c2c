"""Inside a process of check.py --exact: float64, no dropout, and one order of the examples in every run.

With these changes, a run on one process and a run on several differ by rounding alone.
"""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DistributedSampler, RandomSampler, Subset, SubsetRandomSampler
from torch.utils.data._utils.fetch import _MapDatasetFetcher


def begin():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    replace(nn.Module, "__call__", call)
    replace(_MapDatasetFetcher, "fetch", fetch)
    replace(torch.amp.autocast_mode.autocast, "__init__", never_cast)
    for sampler in (RandomSampler, SubsetRandomSampler, DistributedSampler):
        replace(sampler, "__iter__", in_one_order)
    for name in dir(F):
        if "dropout" in name and name[0] != "_":
            setattr(F, name, lambda values, *args, **kwargs: values)


def replace(owner, name, wrapper):
    """Replace a function by `wrapper`, which gets the function as its first argument and calls it."""
    function = getattr(owner, name)

    def called(*args, **kwargs):
        return wrapper(function, *args, **kwargs)

    setattr(owner, name, called)


def nudge(model):
    """Change the last bit of every second weight: how far is this run from one without the change?"""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                signs = torch.ones_like(weight).flatten()
                signs[::2] += torch.finfo(weight.dtype).eps
                weight.mul_(signs.view_as(weight))


def wide(values):
    """The same tensors, in float64."""
    if isinstance(values, torch.Tensor):
        return values.double() if values.is_floating_point() else values
    if isinstance(values, dict):
        return type(values)((key, wide(value)) for key, value in values.items())
    return type(values)(map(wide, values)) if type(values) in (list, tuple) else values


def call(function, module, *args, **kwargs):
    if isinstance(getattr(module, "dropout", None), float):  # of an RNN, or of attention
        module.dropout = 0.0
    return function(module, *wide(args), **wide(kwargs))


def never_cast(function, context, *args, **kwargs):
    function(context, *args, **{**kwargs, "enabled": False})


def in_one_order(function, sampler):
    """The order depends on how often this sampler was used, so it is the same with any kind of sampler."""
    if getattr(sampler, "replacement", False) or not getattr(sampler, "shuffle", True):
        yield from function(sampler)
        return
    sampler.port_epoch = getattr(sampler, "port_epoch", 0) + 1
    randperm = torch.randperm

    def same_permutation(count, **options):
        return randperm(count, generator=torch.Generator().manual_seed(sampler.port_epoch))

    torch.randperm = same_permutation
    try:
        indices = list(function(sampler))
    finally:
        torch.randperm = randperm
    yield from indices


def fetch(function, fetcher, index):
    if not isinstance(fetcher.dataset, Fixed):
        fetcher.dataset = Fixed(fetcher.dataset)
    return wide(function(fetcher, index))


class Fixed:
    """A data set that seeds the random numbers of each example."""

    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        data, number = self.data, index
        while isinstance(data, Subset):
            data, number = data.dataset, data.indices[number]
        seed = random.Random(str(number)).getrandbits(32)
        torch_state, random_state = torch.get_rng_state(), random.getstate()
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        try:
            return self.data[index]
        finally:
            torch.set_rng_state(torch_state)
            random.setstate(random_state)
