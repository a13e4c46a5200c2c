"""Exercise 03b: DDP that sends while it still computes. 24 points, about 240 minutes.

In exercise 03, all communication came after the backward pass: first the network was idle, then the
processor. But the gradients of the last layer are ready long before the gradients of the first layer, so DDP
sends each gradient while the backward pass continues with earlier layers. You write a wrapper that also sends
gradients during the backward pass. The wrapper is used like this:

    model = Overlapped(model, bucket_bytes=1_000_000)
    for images, targets in batches:
        optimizer.zero_grad()
        loss(model(images), targets).backward()     # sends what is ready, and continues
        model.finish()                              # waits until every gradient is the mean
        optimizer.step()

Solve the parts in order. For each part, read the paragraph about it below, fill its gaps, and check it, for
example with `make check EX=03b.1`. You can solve each part without reading about the later parts.

    03b.1 (3 points)  30 minutes: put parameters into buckets
    03b.2 (3 points)  30 minutes: make the ranks equal at the start, and keep buffers equal
    03b.3 (6 points)  60 minutes: without hooks: finish sends every bucket and computes the means
    03b.4 (8 points)  75 minutes: hooks that send each bucket as soon as it is full
    03b.5 (4 points)  45 minutes: accumulate without communication

Part 1, buckets. One `all_reduce` per parameter has too much overhead, and a single `all_reduce` for all
parameters could begin only after the backward pass. So parameters are grouped into buckets. The backward pass
goes from the last layer to the first, so build the buckets in the reverse order of `module.parameters()`: the
first bucket then also fills up first. Put a parameter into the current bucket unless the bucket would then
hold more than `bucket_bytes`. If the bucket would hold more, start a new bucket. (A parameter larger than
`bucket_bytes` gets its own bucket.) Parameters that are frozen when the wrapper is made belong to no bucket,
and no bucket is empty. If all parameters are frozen, there is no bucket. A parameter that is frozen later has
no gradient from then on. All parameters have the same dtype (buffers may have other dtypes). Parameters may
have any memory format, such as channels_last. There are no sparse gradients, such as those of
`nn.Embedding(sparse=True)`.

DDP itself builds its buckets differently. DDP closes a bucket only once the size limit is reached, so a
bucket may become larger than the limit. After the first step, DDP rebuilds the buckets in the order in which
the gradients became ready.

Part 2, equal ranks. When the wrapper is made, all ranks get rank 0's parameters and buffers, including the
buffers that are not in `state_dict()`. Later, buffers such as running means drift apart, because every rank
has different images. So all ranks get rank 0's buffers again before each forward pass in training mode, even
if autograd is switched off (`torch.no_grad`). In evaluation mode, `forward` sends nothing, so a rank may then
call it alone. A backward pass sends its gradients in training mode and in evaluation mode.

Part 3, finish. Copy the gradients of a bucket into one flat tensor and start one `dist.all_reduce` of this
tensor with `async_op=True`. The call returns a handle at once, and the handle's `wait()` returns when the
flat tensor contains the sum. Do not write into the flat tensor until then. `finish()` starts the `all_reduce`
of every bucket that has not been sent yet (in this part, of every bucket), waits for all of them, and
replaces each parameter's gradient by the mean: the sum of all ranks' gradients, divided by the number of
ranks.

A model may use different parameters on each rank, and in some steps a rank may run neither a forward nor a
backward pass. (You may assume: if the model has buffers, every rank runs a forward pass in every step.)
`finish()` is called on all ranks in any case. A missing gradient counts as zero in the mean. A gradient
that is None on all ranks stays None, but a gradient of zeros does not become None. A rank alone cannot know
whether a gradient is None on all ranks, so the ranks must tell each other: send one extra number per
parameter, in the flat tensor or in one more `all_reduce` in `finish()`.

`zero_grad` may set gradients to None, or write zeros into them. So the tensor that you assign to
`parameter.grad` must not share memory with anything that you use again.

Part 4, hooks. `parameter.register_post_accumulate_grad_hook(function)` calls `function(parameter)` in every
backward pass as soon as `parameter.grad` is complete. The function is called only once per backward pass,
even if several layers share the parameter. When all gradients of a bucket are ready, start its `all_reduce`
in the hook. A hook must not wait for anything, not even for a rank that has not started its backward pass.
All ranks must make the same calls in the same order: bucket 1 is sent before bucket 2 on every rank, even on
a rank where bucket 2 is full first. A bucket that never becomes full is sent by `finish()`.

In each step, call `all_reduce` once per bucket, and at most once more to find out which gradients are
missing. Apart from the broadcasts of buffers, call nothing else of `torch.distributed`. The checks count
these calls and their bytes.

Part 5, accumulation. Forward and backward passes inside `with model.no_sync():` send nothing at all: no
gradients and, even in training mode, no buffers. These `no_sync` blocks may be nested, and an exception may
end them. Gradients from inside a block add up in `parameter.grad`, and the next backward pass outside the
block sends the sums, even for parameters that were used only inside the block. Between two calls of
`finish()` there is at most one backward pass outside `no_sync`.

The process group already exists: use `torch.distributed`.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn


def make_buckets(parameters, bucket_bytes):
    """Return a list of lists of parameters: the buckets, in the order in which they will fill up.

    `parameters` is the result of `module.parameters()`. `parameter.nbytes` is the size of a parameter in
    bytes.
    """
    # cut 03b.1: put parameters into buckets
    buckets = []
    size = 0  # of the last bucket
    for parameter in reversed(list(parameters)):
        if not parameter.requires_grad:
            continue
        size += parameter.nbytes
        if not buckets or size > bucket_bytes:
            buckets.append([])
            size = parameter.nbytes
        buckets[-1].append(parameter)
    return buckets
    # end


class Overlapped(nn.Module):
    """A model whose gradients are averaged over all ranks during the backward pass."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        self.buckets = make_buckets(module.parameters(), bucket_bytes)
        # cut 03b.2: begin with what rank 0 has
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        # end
        # cut 03b.4: install the hooks, and add what the other methods need
        self.sends = True
        self.in_flight = []  # of each bucket that was sent: the flat tensor and the handle
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients that have not come
        self.place = {}  # the number of each parameter's bucket
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                self.place[parameter] = number
                parameter.register_post_accumulate_grad_hook(self.gradient_came)
        # instead: # 03b.3: add what your other methods need, such as a list of the buckets that were sent
        # instead: # 03b.4: install the hooks
        # end

    def forward(self, *inputs, **named):
        """Make the buffers equal if necessary, and return the module's output."""
        # cut 03b.2: keep buffers equal, and call the module
        if self.training and self.sends:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        return self.module(*inputs, **named)
        # end

    def gradient_came(self, parameter):
        """The hook, called when this parameter's gradient is complete. The backward pass continues when the
        hook returns.
        """
        # cut 03b.4: send each bucket that is full now
        if not self.sends:
            return
        self.missing[self.place[parameter]] -= 1
        while len(self.in_flight) < len(self.buckets) and self.missing[len(self.in_flight)] == 0:
            self.send_next()
        # end

    def send_next(self):
        """Start the all_reduce of the first bucket that has not been sent, full or not."""
        # cut 03b.3: copy the bucket into one flat tensor and begin its all_reduce
        bucket = self.buckets[len(self.in_flight)]
        parts = []
        there = []  # whether each parameter has a gradient on this rank
        for parameter in bucket:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parts.append(gradient.flatten())
            there.append(parameter.grad is not None)
        flat = torch.cat([*parts, parts[0].new_tensor(there)])
        self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))
        # end

    def finish(self):
        """Called on all ranks before `optimizer.step()`. Then every gradient is the mean over all ranks."""
        # cut 03b.3: send the rest, wait for all, and give each parameter its mean
        while len(self.in_flight) < len(self.buckets):
            self.send_next()
        for bucket, (flat, work) in zip(self.buckets, self.in_flight, strict=True):
            work.wait()
            sizes = [parameter.numel() for parameter in bucket]
            *sums, there = flat.split([*sizes, len(bucket)])
            for parameter, total, count in zip(bucket, sums, there.tolist(), strict=True):
                if count > 0:
                    parameter.grad = total.view_as(parameter) / dist.get_world_size()
        self.in_flight = []
        self.missing = [len(bucket) for bucket in self.buckets]
        # end

    @contextlib.contextmanager
    def no_sync(self):
        """Forward and backward passes inside `with model.no_sync():` send nothing."""
        # cut 03b.5: send nothing until the block is left, in whatever way
        before = self.sends
        self.sends = False
        try:
            yield
        finally:
            self.sends = before
        # end
