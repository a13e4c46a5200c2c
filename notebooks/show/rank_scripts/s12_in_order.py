"""Records the collectives of a step on a mesh in their order."""

import torch
from torch.nn.functional import cross_entropy

from planner import dry_run


class InOrder(dry_run.Recorder):
    def __init__(self, mesh):
        super().__init__(mesh)
        self.sent = []

    def note(self, kind, function, args, result):
        before = self.counts.copy()
        super().note(kind, function, args, result)
        self.sent.append(next(iter(self.counts - before))._asdict())


def record_step(model, images, labels, mesh):
    with InOrder(mesh) as recorder:
        recorder.when = "forward"
        loss = cross_entropy(model(images), labels)
        recorder.when = "backward"
        loss.backward()
        recorder.when = "optimizer"
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    return recorder.sent
