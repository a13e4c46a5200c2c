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
    found = []
    for size in sizes:
        images = floats(size, 6)
        labels = integers(0, 3, size)
        found.append((images, labels))
    return found


def answers(state, images, buffers=None):
    """The model, in float64. With buffers: in evaluation mode."""
    hidden = images.double() @ state["first.weight"].double().T + state["first.bias"]
    if "norm.weight" in state:
        mean, variance = buffers or (None, None)
        weights = state["norm.weight"], state["norm.bias"]
        hidden = batch_norm(hidden, mean, variance, *weights, training=buffers is None)
    return torch.tanh(hidden) @ state["second.weight"].double().T + state["second.bias"]


@dataclass
class Learnt:
    """Parameters in the end, one of them after each step, and the loss of each step."""

    state: dict
    path: list
    losses: list


def loss_of(state, parts, alike):
    """The loss of one step, to which each rank has brought a batch."""
    sizes = [len(labels) for _, labels in parts]
    mean_size = sum(sizes) / len(parts)
    loss = 0
    for images, labels in parts:
        total = cross_entropy(answers(state, images), labels, reduction="sum")
        size = mean_size if alike else len(labels)
        loss = loss + total / size
    return loss / len(parts)


def learnt(state, steps, lr, momentum=0.0, decay=0.0, most=None, alike=False):
    """What one process learns. A step has a batch of each rank; the ranks count alike, or the images do. A
    step whose gradients are not finite is left out. `lr` may be a list with one for each step."""
    right = Learnt({}, [], [])
    for name, value in state.items():
        right.state[name] = value.double().requires_grad_()
    values = right.state.values()
    optimizer = Optimizer("SGD", values, {"lr": lr, "momentum": momentum, "weight_decay": decay})
    for number, parts in enumerate(steps):
        loss = loss_of(right.state, parts, alike)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([value.grad for value in values])
        if most is not None and norm > most:
            for value in values:
                value.grad *= most / norm
        if norm.isfinite():
            optimizer.options["lr"] = lr[number] if isinstance(lr, list) else lr
            optimizer.step()
        right.path.append(right.state["second.bias"].detach().clone())
        right.losses.append(loss.item())
    for name, value in right.state.items():
        right.state[name] = value.detach()
    return right


def run_and_count(body, inputs, **more):
    """run(). If it hangs, how far each rank came: inside DDP nobody can see who waits for whom."""
    try:
        return run(body, inputs, **more)
    except Verdict as verdict:
        counts = []
        for events in getattr(verdict, "events", []):
            names = [event["event"] for event in events]
            counts.append(names.count("forward"))
        if verdict.status == "timeout" and len(set(counts)) > 1:
            words = [f"rank {rank}: {count}" for rank, count in enumerate(counts)]
            verdict.came += f"; number of training forward passes that each rank began: {', '.join(words)}"
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
    found = []
    for machine, count in enumerate(counts):
        for local in range(count):
            found.append(
                {
                    "WORLD_SIZE": str(sum(counts)),
                    "GROUP_WORLD_SIZE": str(len(counts)),
                    "RANK": str(len(found)),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(count),
                    "GROUP_RANK": str(machine),
                }
            )
    return found
