"""The simulated GPUs of tools/testbed refuse what a GPU refuses, with CUDA's words, and count waits."""

import sys
import time
from contextlib import nullcontext

import pytest

from tools.testbed import pretending

pytestmark = [
    pytest.mark.long,  # the quick tests do without simulated GPUs, whose library takes a minute to compile
    pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing()),
    pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs"),
]
BEGIN = """
import os, torch, torch.distributed as dist, torch.nn.functional as F
one, two = torch.device("cuda", 0), torch.device("cuda", 1)
"""
GROUP = """
def group(backend, **more):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **more)
def gather(output, input):
    dist.distributed_c10d._get_default_group()._allgather_base(output, input)
"""


@pytest.fixture
def run_lines(forked, tmp_path):
    """Run these lines on two pretended GPUs; what they print, or their error."""

    def run_lines(lines, processes=0):
        path = tmp_path / "look.py"
        path.write_text(BEGIN + GROUP + lines)
        words = ["torchrun", "--standalone", "--nproc-per-node", processes] if processes else [sys.executable]
        result = forked([*words, path], folder=f"look{time.monotonic_ns()}", gpus=2)
        run_lines.waits = result.waits
        return result.stdout.strip() if result.code == 0 else result.stderr.strip()

    return run_lines


# An error, and lines that end in it.
REFUSED = """
Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!
    torch.ones(2, device=one) + torch.ones(2)
Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!
    torch.ones(2, device=one) + torch.ones(2, device=two)
Expected all tensors to be on the same device, but found at least two devices,
    torch.nn.Linear(2, 2)(torch.ones(1, 2, device=one))
indices should be either on cpu or on the same device
    torch.ones(4)[torch.tensor([1], device=one)]
CUDA error: invalid device ordinal
    torch.ones(2, device='cuda:2')
Expected a 'cuda' device type for generator but found 'cpu'
    torch.rand(2, device=one, generator=torch.Generator())
Attempting to deserialize object on CUDA device 1
    torch.save(torch.ones(2, device=two), 'x'); os.environ['PRETEND_GPUS'] = '1'; torch.load('x')
Backend gloo, given a tensor of a GPU, does not support allreduce
    group('gloo'); dist.all_reduce(torch.ones(2, device=one))
No backend type associated with device type cpu
    group('nccl'); dist.all_reduce(torch.ones(2))
Unconvertible NCCL type Short
    group('nccl'); dist.all_reduce(torch.ones(2, dtype=torch.int16, device=one))
Tensors must be contiguous
    group('nccl'); dist.all_reduce(torch.ones(4, 4, device=one)[:, ::2])
Tensor found on device cuda:1 but backend constrained to cuda:0
    group('nccl', device_id=one); dist.all_reduce(torch.ones(2, device=two))
does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'
    torch.use_deterministic_algorithms(True); torch.ones(4, device=one).cumsum(0)
output tensor must have the same type as input tensor
    group('nccl', device_id=one); gather(torch.ones(2, device=one), torch.ones(2, device=one).int())
pretended CUDA: the CPU has no kernel for aten::
    x = torch.ones(2, 2, device=one); torch.ops.aten._cudnn_ctc_loss(x, x, [1], [1], 0, False, False)
""".strip().splitlines()


@pytest.mark.parametrize(
    ("lines", "error"), list(zip(map(str.strip, REFUSED[1::2]), REFUSED[::2], strict=True))
)
def test_what_a_gpu_refuses_is_refused(run_lines, lines, error):
    last = run_lines(lines).splitlines()[-1]
    assert error in last and ("pretended" in last) == ("pretended" in error), "nor is it a fault of a lesson"


def test_each_gpu_has_random_numbers_of_its_own(run_lines):
    lines = """
torch.manual_seed(1)
on_cpu, states = torch.get_rng_state(), [torch.cuda.get_rng_state(each) for each in (one, two)]
a, b = torch.rand(4, device=one), torch.rand(4, device=two)
assert torch.equal(torch.get_rng_state(), on_cpu), "the GPU has used the CPU's"
assert a.tolist() == b.tolist(), "both were seeded alike"
assert torch.rand(4, device=one).tolist() != a.tolist()
torch.cuda.set_rng_state(states[0], one)
assert torch.rand(4, device=one).tolist() == a.tolist()
assert torch.rand(4, device=two).tolist() != b.tolist(), "the state of cuda:0 has reached cuda:1"
print("as it should be")
"""
    assert run_lines(lines) == "as it should be"


WAIT = [
    ("x.sum().item()", "aten::_local_scalar_dense"),
    ("x.cpu()", "copy to the CPU"),
    ("torch.ones(20_000).to(one, non_blocking=True)", "copy to the GPU"),
    ("torch.ones(2).to(one)", "copy to the GPU"),
    ("torch.ones(()).to(one)", "copy to the GPU"),
    ("x.multinomial(1)", "aten::multinomial"),
    ("x.unique_consecutive()", "aten::unique_consecutive"),
    ("x.nonzero()", "aten::nonzero"),
    ("x[x > 0] = x[:1].expand(20_000)", "aten::_index_put_impl_ with a mask"),
    ("torch.cuda.synchronize()", "synchronize"),
    ("torch.ones(2).to(one, non_blocking=True)", None),
    ("torch.ones(20_000).pin_memory().to(one, non_blocking=True)", None),
    ("x.cpu if x is None else x.to('cpu', non_blocking=True)", None),
    ("x.to(two)", None),
    ("F.cross_entropy(x[:8].view(2, 4), torch.zeros(2, dtype=torch.int64, device=one))", None),
]


@pytest.mark.parametrize(("line", "what"), WAIT)
def test_the_processor_waits_where_cuda_makes_it_wait(run_lines, line, what):
    """Counted at the line of a lesson that waits."""
    lines = f"x = torch.ones(20_000, device=one)\ndef step():\n    {line}\n"
    path = "lessons/waits.py"
    call = f"exec(compile('step()', '/{path}', 'exec')); print('ran')"
    assert run_lines(lines + call) == "ran"
    found = {place.partition(" ")[2] for place in run_lines.waits if place.startswith("waits.py:1 ")}
    assert found == ({what} if what else set())


@pytest.mark.parametrize(
    ("hosts", "devices", "when", "said"),
    [
        (("a", "a"), (0, 0), "device_id=device", "Duplicate GPU detected : rank"),
        (("a", "a"), (0, 0), "", "Duplicate GPU detected : rank"),  # by the first collective
        (("a", "b"), (0, 0), "", "both"),
        (("a", "a"), (0, 1), "device_id=device", "both"),
    ],
)
def test_two_ranks_of_a_host_cannot_share_a_gpu(run_lines, hosts, devices, when, said):
    lines = f"""
import torch.multiprocessing as mp
def rank_of(rank):
    os.environ["NCCL_HOSTID"] = {hosts!r}[rank]
    device = torch.device("cuda", {devices!r}[rank])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method="file://" + os.getcwd() + "/meet", rank=rank, world_size=2,
                            {when})
    x = torch.full((2,), rank + 1.0, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [3, 3]
    dist.destroy_process_group()
mp.spawn(rank_of, nprocs=2)
print("both")
"""
    assert said in run_lines(lines)


@pytest.mark.parametrize(
    ("wait", "read"),
    [
        ("", "nan"),
        ("torch.cuda.synchronize()", "4.0"),
        ("event = torch.cuda.Event(); event.record(); event.synchronize()", "4.0"),
    ],
)
def test_what_a_gpu_has_not_sent_yet_cannot_be_read(run_lines, wait, read):
    lines = "kept = torch.ones(4, device=one).to('cpu', non_blocking=True)"
    assert run_lines(f"{lines}\n{wait}\nprint(kept.sum().item())") == read


def test_memory_is_counted_for_each_gpu(run_lines):
    lines = """
x = torch.ones(1000, 1000, device=one)
y = x + x
assert torch.cuda.memory_allocated(one) == 8_000_512, torch.cuda.memory_allocated(one)  # blocks of 512 bytes
del y
assert torch.cuda.memory_allocated(one) == 4_000_256
assert torch.cuda.max_memory_allocated(one) == 8_000_512
torch.cuda.reset_peak_memory_stats(one)
assert torch.cuda.max_memory_allocated(one) == 4_000_256
assert torch.cuda.max_memory_allocated(two) == 0
print("as it should be")
"""
    assert run_lines(lines) == "as it should be"


OPERATIONS = """
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
dist.init_process_group("nccl", device_id=device)
all, other = dist.group.WORLD, dist.new_group([0, 1])
x = torch.ones(4, device=device)
{}
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "dist.all_reduce(x if rank else x.int())",
            "all_reduce of 4 (Int|Float).* all_reduce of 4 (Int|Float)",
        ),
        (
            "works = [dist.all_reduce(x + 1, group=each, async_op=True) for each in "
            "((all, other) if rank else (other, all))]; [work.wait() for work in works]",
            "another order",
        ),
        ("dist.all_reduce(x); dist.broadcast(x, 0, group=other); dist.all_reduce(x[:2])", ""),
    ],
)
def test_ranks_that_do_not_agree_on_an_operation_are_found(run_lines, line, said):
    """Gloo adds four bytes to four bytes, and takes two groups in any order: NCCL would hang."""
    with pytest.raises(AssertionError, match=said) if said else nullcontext():
        assert run_lines(OPERATIONS.format(line), processes=2) == ""


def test_a_command_that_does_not_find_its_gpus_fails(tmp_path):
    """It would have used the CPU, and passed."""
    (tmp_path / "rank0.1.json").write_text('{"gpus": 0, "waits": {}}')
    with pytest.raises(AssertionError, match="no process has seen 2 GPUs"):
        pretending.waits(2, tmp_path)
