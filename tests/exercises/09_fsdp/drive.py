"""Runs the student's file of exercise 09 in a rank: makes units, gives images, hands over shards."""

import itertools

import torch
from asking import Asking
from give_back import own_pages, settle
from torch import nn

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class Layers(nn.Module):
    """Linear layers, with tanh after each unless it is plain. Those in `skip` are left out on this rank."""

    def __init__(self, widths, state, plain=False, skip=()):
        super().__init__()
        sizes = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(inside, outside) for inside, outside in sizes)
        self.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        self.plain, self.skip, self.computed = plain, list(skip), set()

    def forward(self, images):
        self.computed |= {images.dtype, self.layers[0].weight.dtype}
        for number, layer in enumerate(self.layers):
            if number not in self.skip:
                images = layer(images) if self.plain else torch.tanh(layer(images))
        return images


def seen(tensor):
    """A tensor as it can be sent, and what it is."""
    if not isinstance(tensor, torch.Tensor):
        return {"kind": type(tensor).__name__}
    kind = str(tensor.dtype).removeprefix("torch.")
    return {"kind": kind, "leaf": tensor.is_leaf and tensor.requires_grad, "value": tensor.detach().clone()}


def by_name(tensors):
    if not isinstance(tensors, dict):
        return None if tensors is None else type(tensors).__name__
    return {str(name): seen(tensor) for name, tensor in tensors.items()}


def split(student, inputs, tools):
    """The flat tensor and all shards of some lists of tensors, without a process group."""
    found = []
    for case in inputs["cases"]:
        tensors = [torch.from_numpy(one).to(DTYPES[case["dtype"]], copy=True) for one in case["tensors"]]
        if case.get("columns"):  # in memory column by column, as the gradients of some layers come
            tensors = [one.mT.contiguous().mT if one.ndim > 1 else one for one in tensors]
        flat = student.flatten(tensors, case["world_size"])
        shards = [student.split(tensors, rank, case["world_size"]) for rank in range(case["world_size"])]
        for tensor in tensors:
            tensor.zero_()  # what is a view of it is zero now, too
        found.append({"flat": seen(flat), "shards": [seen(shard) for shard in shards]})
    return found


def begin(student, inputs):
    dtype = DTYPES[inputs.get("dtype", "float32")]
    modules = [Layers(**one) for one in inputs["units"]]
    return [student.Unit(module, dtype) for module in modules], modules


def through(units, images):
    for unit in units:
        images = unit(images)
    return images


def use(student, inputs, tools):
    """Make units; put other numbers into their shards; gather; compute without and with gradients."""
    units, modules = begin(student, inputs)
    answer = {"shards": [seen(unit.shard) for unit in units]}
    for unit, shard in zip(units, inputs.get("shards", []), strict=False):
        with torch.no_grad():
            unit.shard.copy_(torch.from_numpy(shard))
    dtypes = [DTYPES[dtype] for dtype in inputs.get("gather", [])]
    answer["gathered"] = [[by_name(unit.gather(dtype)) for unit in units] for dtype in dtypes]
    if "look" in inputs:
        with torch.no_grad():
            answer["looked"] = seen(through(units, torch.from_numpy(inputs["look"])))
    answer["passes"] = []
    for batch in inputs.get("passes", []):
        images = torch.from_numpy(batch["images"]).requires_grad_(batch["leaf"])
        output = through(units, images)
        (output * torch.from_numpy(batch["slope"])).sum().backward()
        gradients = [seen(unit.shard.grad) for unit in units]
        came = {"output": seen(output), "images": seen(images.grad), "shards": gradients}
        answer["passes"].append(came | {"requires a gradient": images.requires_grad})
    if "together" in inputs:
        # Each unit is called twice before any backward.
        outputs = [through(units, torch.from_numpy(batch["images"])) for batch in inputs["together"]]
        slopes = [torch.from_numpy(batch["slope"]) for batch in inputs["together"]]
        # Seen by columns: so the gradient of an output is not contiguous.
        pairs = [[one.mT.contiguous() for one in pair] for pair in zip(outputs, slopes, strict=True)]
        sum((output * slope).sum() for output, slope in pairs).backward()
        answer["together"] = [seen(unit.shard.grad) for unit in units]
    answer["state"] = [by_name(unit.full_state()) for unit in units] if inputs.get("state") else []
    answer["computed"] = [sorted(str(one).removeprefix("torch.") for one in m.computed) for m in modules]
    return answer


def train(student, inputs, tools):
    """Some steps of SGD with momentum. The loss is the mean of squares, or the outputs times a slope."""
    units, _ = begin(student, inputs)
    optimizer = torch.optim.SGD([unit.shard for unit in units], inputs["lr"], momentum=inputs["momentum"])
    losses = []
    for batch in inputs["batches"]:
        optimizer.zero_grad()
        output = through(units, torch.from_numpy(batch["images"]))
        if "slope" in batch:
            loss = (output * torch.from_numpy(batch["slope"])).sum()
        else:
            loss = (output - torch.from_numpy(batch["targets"])).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    shards = [seen(unit.shard) for unit in units]
    return {"losses": losses, "shards": shards, "state": [by_name(unit.full_state()) for unit in units]}


class Large(nn.Module):
    """When a pass comes by in the middle, the judge is asked for a number to multiply with, and shown what
    has come: so nobody can be looked at before, and nobody goes on without."""

    def __init__(self, width, inside, ask, number):
        super().__init__()
        self.first = nn.Linear(width, inside, device="meta")
        self.second = nn.Linear(inside, width, device="meta")
        self.to_empty(device="cpu")
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.5 / width)
        self.ask, self.number = ask, number

    def forward(self, images):
        middle = self.first(images)
        times = self.ask("forward", self.number, middle)
        middle = Asking.apply(middle, times, lambda slope: self.ask("backward", self.number, slope))
        return self.second(middle)


def large(student, inputs, tools):
    """One step with large units, while others look at memory and traffic."""
    own_pages()
    width, inside, dtype = inputs["width"], inputs["inside"], DTYPES[inputs["dtype"]]
    known = {}

    def ask(way, number=None, value=None):
        # A module may be computed a second time in backward: that is the same forward pass.
        name = way if number is None else f"{way} {number}"
        if name not in known:
            settle()
            known[name] = tools.ask(name, None if value is None else value.detach()[:, :8])
        return known[name]

    warm = student.Unit(Large(4, 8, lambda *_: 1.0, 0), dtype)
    if inputs["passes"]:
        warm(torch.ones(2, 4)).sum().backward()
    del warm
    ask("before")
    units = [student.Unit(Large(width, inside, ask, number), dtype) for number in range(inputs["count"])]
    ask("made", value=torch.stack([unit.shard[:4] for unit in units]))
    if not inputs["passes"]:
        return {}
    # Only now, and on each rank other numbers: nobody has the weights who does not gather them.
    with torch.no_grad():
        for unit, fill in zip(units, inputs["fills"], strict=True):
            unit.shard.fill_(fill)
    output = through(units, torch.from_numpy(inputs["images"]))
    slope = ask("between", value=output)
    (output.sum() * slope).backward()
    ask("after", value=torch.stack([unit.shard.grad[-width:] for unit in units]))
    return {"output": output.detach(), "ends": [unit.shard.grad[-width:].clone() for unit in units]}
