"""SGD and Adam for the tests. The first use of torch.optim imports a second's worth of other things."""

import torch


def sgd(gradient, weight, state, lr, momentum=0.0, weight_decay=0.0):
    gradient = gradient + weight_decay * weight
    state["moving"] = momentum * state.get("moving", 0) + gradient
    return lr * state["moving"]


def adam(gradient, weight, state, lr, eps):
    count = state["count"] = state.get("count", 0) + 1
    state["mean"] = 0.9 * state.get("mean", 0) + 0.1 * gradient
    state["square"] = 0.999 * state.get("square", 0) + 0.001 * gradient**2
    return lr * state["mean"] / (1 - 0.9**count) / ((state["square"] / (1 - 0.999**count)).sqrt() + eps)


class Optimizer:
    """One of them, by its name in torch.optim."""

    def __init__(self, name, parameters, options):
        self.rule = {"SGD": sgd, "Adam": adam}[name]
        self.parameters = list(parameters)
        self.options = options
        self.states = [{} for _ in self.parameters]

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter, state in zip(self.parameters, self.states, strict=True):
            if parameter.grad is not None:
                parameter -= self.rule(parameter.grad, parameter, state, **self.options)
