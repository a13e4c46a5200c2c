"""Lesson 18's training on two ranks, with batches that are damaged on purpose: for notebook 18.

RUN names the folder of a run of the lesson, and OPTIONS has the options of its command.
"""

import hashlib
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from group import rank, world_size
from s18_own_norm import note_own_gradients
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import bpe, language_model, source
from parts.guard import Guard
from parts.snapshot import unseal

LESSON = "18_language_model"
FOLDER = Path(os.environ["RUN"])
NO_TARGET = -100  # cross_entropy leaves out positions with this target


def damage(kind, step, tokens, following, vocabulary):
    """Return the batch that a damaged file, or a mistake in the data loader, would give."""
    if kind == "random tokens":
        # The same draw in each step would be a batch that the model learns by heart.
        draw = torch.Generator().manual_seed(1000 * rank + step)
        drawn = torch.randint(vocabulary, (len(tokens), tokens.shape[1] + 1), generator=draw)
        return drawn[:, :-1], drawn[:, 1:]
    if kind == "zeros":
        return torch.zeros_like(tokens), torch.zeros_like(following)
    if kind == "no targets":
        return tokens, torch.full_like(following, NO_TARGET)
    return tokens, following


class Job:
    """The lesson's model, optimizer, schedule and guard, as they were after a step of its run."""

    def __init__(self, after_step, *more_options):
        parser = workload.parser(f"{LESSON}.py", "")
        language_model.options(parser)
        self.arguments = parser.parse_args([*os.environ["OPTIONS"].split(), *more_options])
        workload.set_seed(self.arguments.seed)
        (path,) = FOLDER.glob("*.tokens-*.pt")
        self.text = torch.load(path, weights_only=True)
        length = self.arguments.length
        self.train_set = source.windows(self.text["train"], length, self.arguments.train_size)
        self.held_out = source.windows(self.text["held_out"], length, self.arguments.test_size)
        model = language_model.build_model(self.arguments, torch.device("cpu"))
        self.model = nn.parallel.DistributedDataParallel(model)
        self.own_squares = []
        self.model.register_comm_hook(self.own_squares, note_own_gradients)
        workload.settle(self.model, self.train_set.images[:1])
        self.optimizer = language_model.make_optimizer(self.model, self.arguments)
        self.scheduler = language_model.make_scheduler(self.optimizer, self.arguments, 0)
        self.guard = Guard(self.arguments.skip_above)
        self.done = after_step
        if after_step > 0:
            self.load()

    def load(self):
        (path,) = FOLDER.glob(f"{LESSON}.*-step{self.done:09}.snapshot")
        state = unseal(path.read_bytes())
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.guard.load_state_dict(state["guard"])

    def sampler(self, shuffle=True):
        seed = self.arguments.seed
        return DistributedSampler(self.train_set, shuffle=shuffle, seed=seed, drop_last=True)

    def batches(self, last, shuffle):
        size = self.arguments.batch_size // world_size
        sampler = self.sampler(shuffle)
        loader = DataLoader(
            self.train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate
        )
        return language_model.batches(loader, self.done, last)

    def train(
        self,
        last,
        bad=None,
        on=(1,),
        guard=None,
        clip=1.0,
        leave_out=(),
        schedule_waits=False,
        zero_gradients=False,
        shuffle=True,
    ):
        """Train up to step `last`, and return a row for each step.

        `bad` maps steps to the damage of their batches, which only the ranks in `on` get.
        `guard` is "norm" for the lesson's guard, or "own loss" for one that looks at this rank's loss.
        Batches in `leave_out` are not trained on at all.
        With `schedule_waits`, a skipped step leaves the learning rate as it is.
        With `zero_gradients`, the optimizer gets zeros instead of skipping a step.
        """
        rows = []
        for step, (tokens, following) in enumerate(self.batches(last, shuffle), self.done + 1):
            if step in leave_out:
                self.scheduler.step()
                continue
            kind = (bad or {}).get(step) if rank in on else None
            row = {"step": step, "damaged": kind is not None}
            row |= self.backward(kind, step, tokens, following)
            row["norm"] = nn.utils.clip_grad_norm_(self.model.parameters(), clip).item()
            row["taken"] = self.accepts(guard, row)
            if zero_gradients and not row["taken"]:
                self.model.zero_grad(set_to_none=False)
            if row["taken"] or zero_gradients:
                self.optimizer.step()
            if row["taken"] or not schedule_waits:
                self.scheduler.step()
            rows.append(row)
        self.done = last
        return rows

    def accepts(self, guard, row):
        if guard == "norm":
            return self.guard.accepts(row["step"], row["norm"])
        if guard == "own loss":
            return math.isfinite(row["loss"])
        return True

    def backward(self, kind, step, tokens, following):
        self.optimizer.zero_grad()
        self.own_squares.clear()
        tokens, following = damage(kind, step, tokens, following, self.arguments.tokens)
        scores = self.model(tokens).flatten(0, 1)
        loss = cross_entropy(scores, following.flatten(), ignore_index=NO_TARGET, reduction="sum")
        loss = loss / (following != NO_TARGET).sum()
        if kind == "NaN":
            loss = loss * float("nan")
        loss.backward()
        return {"loss": loss.item(), "own_norm": math.sqrt(sum(self.own_squares))}

    @torch.no_grad()
    def held_out_loss(self):
        scores = self.model.module(self.held_out.images).flatten(0, 1)
        return cross_entropy(scores, self.held_out.labels.flatten()).item()

    def weights(self):
        return nn.utils.parameters_to_vector(self.model.module.parameters()).detach()

    def checksum(self):
        """Of all weights: two runs with the same checksum have the same weights, bit for bit."""
        return hashlib.sha256(self.weights().numpy().tobytes()).hexdigest()[:12]

    def far_from_rank_0(self):
        """The largest and the median difference between a weight of this rank and the same of rank 0."""
        weights = self.weights()
        of_rank_0 = weights.clone()
        dist.broadcast(of_rank_0, src=0)
        differences = (weights - of_rank_0).abs()
        return {"largest": differences.max().item(), "median": differences.median().item()}

    def copy_states_of_rank_0(self):
        """Give all ranks the optimizer states of rank 0, but not its weights."""
        for states in self.optimizer.state.values():
            for state in states.values():
                dist.broadcast(state, src=0)

    def end(self):
        """What the notebook compares at the end of a run."""
        values = {"held_out": self.held_out_loss(), "checksum": self.checksum()}
        values["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        return values | {"skipped": self.guard.skipped}

    def windows(self, step):
        """The windows of this rank's batch of a step, each as a batch of one."""
        size = self.arguments.batch_size // world_size
        for number in list(self.sampler())[size * (step - 1) : size * step]:
            yield self.train_set.images[number][None], self.train_set.labels[number][None]

    def look_at(self, step, kind=None):
        """For each window of this rank's batch of a step: its text, and the norm of its own gradient.

        And the norms of the gradients of its positions, of which the window's gradient is the mean.
        With `kind`, the windows are damaged before.
        """
        encoder = bpe.Encoder([tuple(pair) for pair in self.text["merges"]])
        found = []
        for window in self.windows(step):
            tokens, following = damage(kind, step, *window, self.arguments.tokens)
            losses = self.losses_of(tokens, following)
            row = {"step": step, "rank": rank, "norm": self.norm_of_gradient(losses.mean())}
            row["positions"] = [self.norm_of_gradient(loss) for loss in losses]
            row["pieces"] = [encoder.decode([token]).decode(errors="replace") for token in tokens[0].tolist()]
            found.append(row)
        return found

    def norm_with_digits(self, step, positions):
        """The norm of the first window's gradient with the digits 2, 3, 4 and so on at these positions."""
        tokens, following = next(self.windows(step))
        text = torch.cat([tokens[0], following[0, -1:]])
        for digit, position in enumerate(positions, 2):
            text[position] = ord(str(digit))  # the first 256 tokens are the bytes
        return self.norm_of_gradient(self.losses_of(text[None, :-1], text[None, 1:]).mean())

    def losses_of(self, tokens, following):
        return cross_entropy(self.model.module(tokens)[0], following[0], reduction="none")

    def norm_of_average(self, ranks, first, kind=None):
        """The norm of the average gradient in a job with so many ranks, at the weights of this moment.

        The ordinary batches are those of the next steps of both ranks, from step `first` on. With `kind`,
        rank 1's batch of step `first` is damaged.
        """
        total = torch.zeros_like(self.weights())
        for step in range(first, first + ranks // world_size):
            batch = [torch.cat(parts) for parts in zip(*self.windows(step), strict=True)]
            damaged = kind if rank == 1 and step == first else None
            tokens, following = damage(damaged, step, *batch, self.arguments.tokens)
            loss = cross_entropy(self.model.module(tokens).flatten(0, 1), following.flatten())
            gradients = torch.autograd.grad(loss, list(self.model.module.parameters()))
            total += nn.utils.parameters_to_vector(gradients)
        dist.all_reduce(total)
        return (total / ranks).norm().item()

    def norm_of_gradient(self, loss):
        weights = list(self.model.module.parameters())
        # The graph is kept, because the losses of a window share it.
        return nn.utils.get_total_norm(torch.autograd.grad(loss, weights, retain_graph=True)).item()
