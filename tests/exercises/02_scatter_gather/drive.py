"""Runs the student's file of exercise 02 in a rank. Builds the model, hands over what came of it."""

import torch
from torch import nn

CALLS = []  # (which weights, how many images) for each call of any Model, copies too


class Model(nn.Module):
    """Two layers with a batch norm between, which makes the output depend on who else is in the part, and a
    buffer that state_dict() leaves out. On wish a third layer that shares the second's weight."""

    def __init__(self, inputs, state=None):
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4, eps=0.1)
        self.second = nn.Linear(4, 4)
        self.register_buffer("scale", torch.zeros(4), persistent=False)
        if inputs.get("tied"):
            self.third = nn.Linear(4, 4, bias=False)
            self.third.weight = self.second.weight
        state = inputs["state"] if state is None else state
        self.to(torch.from_numpy(state["first.weight"]).dtype)
        with torch.no_grad():
            for name, tensor in tensors(self).items():
                tensor.copy_(torch.from_numpy(state[name]))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in inputs.get("frozen", []))
        self.norm.train(not inputs.get("evaluation"))
        if inputs.get("evaluation") == "all":
            self.eval()

    def forward(self, images):
        CALLS.append((self.first.weight.data_ptr(), len(images)))
        hidden = self.second(self.norm(self.first(images)).tanh())
        return self.third(hidden) if hasattr(self, "third") else hidden


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def values(model):
    return {name: tensor.detach().clone() for name, tensor in tensors(model).items()}


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def give_gradients(model, given):
    for name, parameter in model.named_parameters():
        if name in given:
            parameter.grad = torch.from_numpy(given[name])


def kind_of(value):
    return "None" if value is None else f"something of the type {type(value).__name__}"


def sequence(value, kind):
    """Words about what is wrong, or None."""
    if not isinstance(value, list | tuple):
        return f"{kind_of(value)} instead of a list"
    for place, one in enumerate(value, 1):
        if not isinstance(one, kind):
            return f"a list whose item number {place} is of the type {type(one).__name__}"
    return None


def cut(student, inputs, tools):
    came = []
    for batch, count in zip(inputs["batches"], inputs["counts"], strict=True):
        batch = torch.from_numpy(batch)
        if batch.ndim > 1:  # images are not contiguous: in memory, they are as with channels_last
            batch = batch.mT.contiguous().mT
        parts = student.scatter(batch, count)
        wrong = sequence(parts, torch.Tensor)
        came.append({"wrong": wrong, "parts": None if wrong else parts})
    return came


def copies(student, inputs, tools):
    """Read the copies; then add something else to the tensors of each, and read all once more."""
    model = Model(inputs)
    replicas = student.replicate(model, inputs["count"])
    wrong = sequence(replicas, nn.Module)
    if wrong:
        return {"wrong": wrong}
    seen = [values(replica) for replica in replicas]
    modes = [[n for n, module in replica.named_modules() if module.training] for replica in replicas]
    frozen = [[n for n, p in replica.named_parameters() if not p.requires_grad] for replica in replicas]
    with torch.no_grad():
        for place, replica in enumerate(replicas):
            for tensor in tensors(replica).values():
                tensor.add_(place + 1)
    return {
        "wrong": None,
        "seen": seen,
        "frozen": frozen,
        "modes": modes,
        "parameters": [list(dict(replica.named_parameters())) for replica in replicas],
        "changed": [values(replica) for replica in replicas],
        "model": values(model),
    }


def compute(student, inputs, tools):
    """Models with weights that differ, in place of copies: each output says which of them it comes from."""
    replicas = [Model(inputs, state) for state in inputs["states"]]
    parts = [torch.from_numpy(part) for part in inputs["parts"]]
    if inputs.get("evaluation"):
        replicas, parts = tuple(replicas), tuple(parts)
    CALLS.clear()
    outputs = student.compute_and_gather(replicas, parts)
    if not isinstance(outputs, torch.Tensor):
        return {"wrong": f"{kind_of(outputs)} instead of a tensor"}
    if outputs.requires_grad and outputs.shape == inputs["upstream"].shape:
        outputs.backward(torch.from_numpy(inputs["upstream"]))
    return {
        "wrong": None,
        "outputs": outputs,
        "reaches": outputs.requires_grad,
        "sizes": [size for _, size in CALLS],
        "gradients": [gradients(replica) for replica in replicas],
    }


def add_up(student, inputs, tools):
    """Gradients that are given, since they could come from any backward pass."""
    model = Model(inputs)
    held = {name: tensor.detach() for name, tensor in tensors(model).items()}
    give_gradients(model, inputs["old"])
    replicas = [Model(inputs, state) for state in inputs["states"]]
    for replica, given in zip(replicas, inputs["gradients"], strict=True):
        give_gradients(replica, given)
    student.reduce(model, replicas)
    return {
        "gradients": gradients(model),
        "state": values(model),
        "held": {name: tensor.detach().clone() for name, tensor in held.items()},
    }


def train(student, inputs, tools):
    """As many steps as there are batches."""
    model = Model(inputs)
    give_gradients(model, inputs["old"])
    optimizer = getattr(torch.optim, inputs["optimizer"])(model.parameters(), **inputs["options"])
    steps, losses, calls = [], [], []
    optimizer.register_step_post_hook(lambda *_: steps.append(0))
    for images, labels in inputs["batches"]:
        CALLS.clear()
        images, labels = torch.from_numpy(images), torch.from_numpy(labels)
        losses.append(student.train_step(model, optimizer, images, labels, inputs["count"]))
        models = {place for place, _ in CALLS}
        calls.append({"sizes": [size for _, size in CALLS], "copies": len(models)})
    return {
        "loss": losses,
        "steps": len(steps),
        "calls": calls,
        "state": values(model),
        "training": all(module.training for module in model.modules()),
    }
