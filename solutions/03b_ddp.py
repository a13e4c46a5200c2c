"""Exercise 03b: DDP that sends while it still computes. 18 points.

In exercise 03 all communication came after the backward pass: the network stood idle first, the processor
afterwards. But the gradients of the last layer are there long before those of the first. DDP sends them
while backward goes on. You write a wrapper that does the same. It is used like this:

    model = Overlapped(model, bucket_bytes=1_000_000)
    for images, targets in batches:
        optimizer.zero_grad()
        loss(model(images), targets).backward()     # sends what is there, and goes on
        model.finish()                              # waits until every parameter has its mean
        optimizer.step()

Buckets. A call for each parameter costs too much, and one call for all could only begin when backward has
ended. So parameters are put into buckets. Backward goes from the last layer to the first, so buckets are
made in the reverse order of `module.parameters()`: the first bucket is full first. A parameter belongs to
the bucket before it unless that would then hold more than `bucket_bytes`; in that case it begins a new one.
(One that is larger than `bucket_bytes` has a bucket of its own, then.) Parameters that are frozen when the
wrapper is made belong to no bucket, and no bucket is empty. All parameters have the same dtype. Sparse
gradients, as `nn.Embedding(sparse=True)` makes them, are outside.

This is not quite what DDP does. It closes a bucket once that has reached its limit, so that it may hold more;
and after the first step it makes the buckets again, in the order in which the gradients have come.

Hooks. `parameter.register_post_accumulate_grad_hook(function)` has `function(parameter)` called in every
backward pass as soon as `parameter.grad` is complete; once, even if several layers share the parameter. When
all gradients of a bucket are there, copy them into one flat tensor and begin one `dist.all_reduce` of it
with `async_op=True`, in the hook. It returns an object at once; its `wait()` returns when the sum is there.
Nothing may wait in backward, not even if another rank has not begun its own. Do not write into the flat
tensor until then. All ranks must make the same calls in the same order: bucket 1 goes before bucket 2 on
every rank, even where bucket 2 is full first.

Gradients that do not come. A model may use other parameters on each rank, and a rank may have neither a
forward nor a backward pass in some step (if the model has buffers, it has a forward pass). `finish()` is
called on all ranks in any case and sends what is left. A missing gradient counts as zero in the mean (the sum
of all ranks' gradients, divided by their number). One that is None on all ranks is None afterwards, too, but
one that is zero is not. A rank cannot know that alone: a number more for each parameter may travel in the
flat tensor, or in one more `all_reduce` in `finish()`. One all_reduce for each bucket and that one are all
the calls in a step, beside those for the buffers in forward: the system counts what your process sends.

Steps. `zero_grad` may set gradients to None, or write zeros into them. So what you give to `parameter.grad`
must not share memory with anything that you use again.

Accumulation. Forward and backward passes in `with model.no_sync():` send nothing at all. (There may be such a
block within another one.) Their gradients add up in `parameter.grad`, and the next backward outside sends the
sums, those of parameters included which only the passes inside have used. Between two calls of `finish()`
there is at most one backward outside of `no_sync`.

Buffers. Running means drift apart, since every rank has other images. Before each forward in training mode
(outside of `no_sync`) all ranks get those of rank 0, also buffers that are not in `state_dict()`. In
evaluation mode nothing is sent: ranks may then call `forward` alone.

The process group is there already: use `torch.distributed`.

    03b.1 (2 points)  put parameters into buckets
    03b.2 (2 points)  begin equal, install the hooks, and keep buffers equal
    03b.3 (6 points)  send each bucket as soon as it is full, and finish
    03b.4 (4 points)  finish with shared, frozen and missing gradients (in the same places as 03b.3)
    03b.5 (4 points)  accumulate without communication
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn


def make_buckets(parameters, bucket_bytes):
    """A list of lists of parameters: the buckets, in the order in which they will be full.

    `parameters` is what `module.parameters()` gives; `parameter.nbytes` is how many bytes one has.
    """
    # cut 03b.1: put parameters into buckets
    buckets, size = [], 0
    for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        size += parameter.nbytes
        if not buckets or size > bucket_bytes:
            buckets.append([])
            size = parameter.nbytes
        buckets[-1].append(parameter)
    return buckets
    # end


class Overlapped(nn.Module):
    """A model whose gradients are averaged over all ranks while backward goes on."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        self.buckets = make_buckets(module.parameters(), bucket_bytes)
        # cut 03b.2: begin with what rank 0 has, and install the hooks
        self.sends, self.in_flight = True, []
        self.missing = [len(bucket) for bucket in self.buckets]
        self.place = {parameter: i for i, bucket in enumerate(self.buckets) for parameter in bucket}
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        for parameter in self.place:
            parameter.register_post_accumulate_grad_hook(self.gradient_came)
        # end

    def forward(self, *inputs, **named):
        """What the module gives, after its buffers were made equal if that is due."""
        # cut 03b.2: keep buffers equal, and call the module
        if self.training and self.sends:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        return self.module(*inputs, **named)
        # end

    def gradient_came(self, parameter):
        """The hook: the gradient of this parameter is complete, and backward goes on when this returns."""
        # cut 03b.3: send each bucket that is full now
        if not self.sends:
            return
        self.missing[self.place[parameter]] -= 1
        while len(self.in_flight) < len(self.buckets) and self.missing[len(self.in_flight)] == 0:
            self.send_next()
        # end

    def send_next(self):
        """Begin the all_reduce of the first bucket that has not been sent, full or not."""
        # cut 03b.3: copy the bucket into one flat tensor and begin its all_reduce
        bucket = self.buckets[len(self.in_flight)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        there = parts[0].new_tensor([p.grad is not None for p in bucket])
        flat = torch.cat([*(part.flatten() for part in parts), there])
        self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))
        # end

    def finish(self):
        """Called on all ranks before `optimizer.step()`. Then every gradient is the mean over all ranks."""
        # cut 03b.3: send the rest, wait for all, and give each parameter its mean
        while len(self.in_flight) < len(self.buckets):
            self.send_next()
        for bucket, (flat, work) in zip(self.buckets, self.in_flight, strict=True):
            work.wait()
            *sums, there = flat.split([*(parameter.numel() for parameter in bucket), len(bucket)])
            for parameter, total, count in zip(bucket, sums, there.tolist(), strict=True):
                if count > 0:
                    parameter.grad = total.view_as(parameter) / dist.get_world_size()
        self.in_flight, self.missing = [], [len(bucket) for bucket in self.buckets]
        # end

    @contextlib.contextmanager
    def no_sync(self):
        """`with model.no_sync():` passes inside send nothing."""
        # cut 03b.5: send nothing until the block is left, in whatever way
        before, self.sends = self.sends, False
        try:
            yield
        finally:
            self.sends = before
        # end
