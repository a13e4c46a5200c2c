"""What exercises 04a and 06 train, in the grader: one process in float64 makes each step with the images of
all ranks."""

from dataclasses import dataclass

import torch
from grader.testing import Verdict, close, floats, integers, run
from optimizers import Optimizer
from torch.nn.functional import batch_norm, cross_entropy


def parameters(width=5):
    shapes = {"first.weight": floats(width, 6) / 2, "first.bias": floats(width) / 2}
    return shapes | {"second.weight": floats(3, width) / width**0.5, "second.bias": floats(3)}


def pictures(*sizes):
    """For each size, as many images and labels. No two images are alike."""
    return [(floats(size, 6), integers(0, 3, size)) for size in sizes]


def answers(state, images, buffers=None):
    """The model, in float64. With buffers: in evaluation mode."""
    hidden = images.double() @ state["first.weight"].double().T + state["first.bias"]
    if "norm.weight" in state:
        weights = state["norm.weight"], state["norm.bias"]
        hidden = batch_norm(hidden, *(buffers or (None, None)), *weights, buffers is None)
    return torch.tanh(hidden) @ state["second.weight"].double().T + state["second.bias"]


@dataclass
class Learnt:
    """Parameters in the end, one of them after each step, and the loss of each step."""

    state: dict
    path: list
    losses: list


def learnt(state, steps, lr, momentum=0.0, decay=0.0, most=None, alike=False):
    """What one process learns. A step has a batch of each rank; the ranks count alike, or the images do. A
    step whose gradients are not finite is left out. `lr` may be a list with one for each step."""
    right = Learnt({name: value.double().requires_grad_() for name, value in state.items()}, [], [])
    values = right.state.values()
    optimizer = Optimizer("SGD", values, {"lr": lr, "momentum": momentum, "weight_decay": decay})
    for number, parts in enumerate(steps):
        sums = [cross_entropy(answers(right.state, one), labels, reduction="sum") for one, labels in parts]
        sizes = [len(labels) for _, labels in parts]
        sizes = [sum(sizes) / len(parts)] * len(parts) if alike else sizes
        loss = sum(one / size for one, size in zip(sums, sizes, strict=True)) / len(parts)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([value.grad for value in values])
        for value in values if most is not None and norm > most else ():
            value.grad *= most / norm
        if norm.isfinite():
            optimizer.options["lr"] = lr[number] if isinstance(lr, list) else lr
            optimizer.step()
        right.path.append(right.state["second.bias"].detach().clone())
        right.losses.append(loss.item())
    right.state = {name: value.detach() for name, value in right.state.items()}
    return right


def run_and_count(body, inputs, **more):
    """run(). If it hangs, how far each rank came: inside DDP nobody can see who waits for whom."""
    try:
        return run(body, inputs, **more)
    except Verdict as verdict:
        events = getattr(verdict, "events", [])
        counts = [sum(one["event"] == "forward" for one in mine) for mine in events]
        if verdict.status == "timeout" and len(set(counts)) > 1:
            words = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            verdict.came += f"; number of training forward passes that each rank began: {words}"
        raise


def compare(ranks, right, first=0, passes=1):
    """Weights in the end, and before them the first step that differs. A step has so many forward passes;
    training has begun with step number `first`. `before`: what second.bias was before each forward pass."""
    path = right.path[first:]
    for step, value in enumerate(path, start=1):
        for rank, came in enumerate(ranks):
            if step * passes < len(came["before"]):  # after the last step there is none
                after = ", the first that differs" if len(path) > 1 else ""
                what = f"second.bias on rank {rank} after step {step} of {len(path)}{after}"
                close(what, came["before"][step * passes], value, 1e-4, 0.1)
    for rank, came in enumerate(ranks):
        for name, value in right.state.items():
            close(f"{name} on rank {rank} after training", came["state"].get(name), value, 1e-4, 0.1)


def environments(*counts):
    """What torchrun tells each process on machines with so many processes."""
    found, every = [], {"WORLD_SIZE": sum(counts), "GROUP_WORLD_SIZE": len(counts)}
    for machine, count in enumerate(counts):
        for local in range(count):
            one = {"RANK": len(found), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": machine}
            found.append({name: str(value) for name, value in (every | one).items()})
    return found
