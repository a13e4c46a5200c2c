"""Lesson 18's guard: it skips the steps whose gradient would damage the model.

    guard = Guard(times=4)
    norm = clip_grad_norm_(model.parameters(), 1.0).item()
    if guard.accepts(step, norm):
        optimizer.step()

All ranks must decide alike, because a rank that skips a step alone has other weights from then on, and no
error is raised. They decide alike without a message: DDP has averaged the gradients, so every rank computes
the same norm. A rank's own loss would not do.
"""

from statistics import median

import torch

import workload

USUAL = 50  # the number of norms whose median is the usual norm
FEWEST = 10  # with fewer norms, only a norm that is not finite is skipped
IN_A_ROW = 20


class Guard:
    """Accepts a step if its norm is finite, and at most `times` the median of the last accepted norms."""

    def __init__(self, times=4.0):
        self.times = times
        self.newest = 0.0
        self.norms = []
        self.skipped = []
        self.in_a_row = 0

    def accepts(self, step, norm):
        self.newest = norm
        limit = float("inf")
        if len(self.norms) >= FEWEST:
            limit = self.times * median(self.norms)
        if norm <= limit and norm != float("inf"):  # both are False for nan
            self.norms = [*self.norms, norm][-USUAL:]
            self.in_a_row = 0
            return True
        self.skipped.append(step)
        self.in_a_row += 1
        if self.in_a_row == IN_A_ROW:
            workload.refuse(
                f"{IN_A_ROW} steps in a row, up to step {step}, were skipped, the last with norm {norm:.4g}: "
                "remove the last snapshots, and use a smaller --lr or a larger --skip-above"
            )
        return False

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def require_finite(model, what_to_do):
    """Refuse weights that are not finite: a run that resumed from them could never learn again."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            workload.refuse(f"{name} is not finite: {what_to_do}")
