"""The index of error messages: each heading is what torch prints, provoked here or seen elsewhere."""

import re
import sys
from pathlib import Path

import pytest

import launcher

PAGE = (launcher.ROOT / "lessons/pages/errors.md").read_text()
PROBES = Path(__file__).resolve().parents[1] / "probes"
PROBE = PROBES / "provoke.py"
H100 = (PROBES / "seen_on_h100.txt").read_text()
ENTRIES = {}  # for each message, the others of its heading, with itself, and the text
for heading, text in re.findall(r"(?ms)^### (.+?)$\n(.*?)(?=^#|\Z)", PAGE):
    together = re.findall(r"`(.+?)`", heading)
    ENTRIES |= dict.fromkeys(together, (together, text))

# Which part of provoke.py runs into it, in one process.
ALONE = {
    "addresses_of_an_old_run": "connectFullMesh failed",
    "child_raises": "terminated with the following error",
    "client_missing": "waiting for clients. .../... clients joined.",
    "disk_full": "unexpected pos ... vs ...",
    "empty_file": "EOFError",
    "host_memory": "DefaultCPUAllocator: can't allocate memory",
    "more_than_weights": "Weights only load failed",
    "name_unknown": "Name or service not known",
    "nested_function": "Can't pickle local object",
    "no_group": "Default process group has not been initialized",
    "one_example": "Expected more than 1 value per channel when training",
    "other_groups": "loaded state dict contains a parameter group that doesn't match",
    "other_model": "size mismatch for ...",
    "port_taken": "EADDRINUSE, message: address already in use",
    "rank_never_joins": "wait timeout after ...ms, keys: ...",
    "rank_not_set": "environment variable RANK expected, but not set",
    "rank_out_of_range": "Invalid rank ..., rank should be in the interval [0, ...]",
    "sampler_of_iterable": "DataLoader with IterableDataset: expected unspecified sampler option",
    "sampler_without_group": "Default process group has not been initialized",
    "server_missing": "while trying to connect to (...)",
    "shuffle_and_sampler": "sampler option is mutually exclusive with shuffle",
    "store_gone": "Broken pipe",
    "too_many_files": "Too many open files",
    "too_many_workers": "Our suggested max number of worker in current system is ...",
    "truncated": "failed finding central directory",
    "worker_bus_error": "It is possible that dataloader's workers are out of shared memory",
    "worker_exits": "DataLoader worker (pid(s) ...) exited unexpectedly",
    "worker_killed": "is killed by signal: Killed",
}
# The same, in two processes that torchrun starts.
TWO = {
    "attribute_of_the_model": "'DistributedDataParallel' object has no attribute ...",
    "device_ids": "device_ids and output_device arguments only work with",
    "group_twice": "trying to initialize the default process group twice!",
    "interface_unknown": "Unable to find address for: ...",
    "key_not_in_checkpoint": "Missing key in checkpoint state_dict: ...",
    "killed": "Signal 9 (SIGKILL) received by PID ...",
    "launcher_hangs_up": "got signal: 1",
    "left_out": "Timed out waiting ...ms for ... operation to complete",
    "mixed_dtensor": "got mixed torch.Tensor and DTensor",
    "module_names": 'Unexpected key(s) in state_dict: "module.',
    "nccl_without_gpu": "Distributed package doesn't have NCCL built in",
    "no_inf_checks": "No inf checks were recorded for this optimizer",
    "none_unused": "did not find any unused parameters in the forward pass",
    "nothing_to_train": "DistributedDataParallel is not needed when a module",
    "other_collective": "Detected mismatch between collectives on ranks",
    "other_count_of_parameters": "DDP expects same model across all ranks",
    "other_shape_of_parameters": "appears not to match sizes of the same param in process 0",
    "other_sizes": "op.preamble.length <= op.nbytes",
    "peer_killed": "Connection closed by peer",
    "raised": "ChildFailedError",
    "ready_twice": "Expected to mark a variable ready only once",
    "sync_batch_norm": "SyncBatchNorm layers only work with GPU modules",
    "unused_parameter": "Expected to have finished reduction in the prior iteration",
}
# What an own command runs into.
RENDEZVOUS = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-conf"]
COMMANDS = {
    "no_gpu": (["torchrun", "--nproc-per-node", "gpu", PROBE, "raised"], "Cuda is not available."),
    "no_host": (
        [*RENDEZVOUS, "is_host=0,read_timeout=1", "--rdzv-endpoint", "localhost:9", PROBE, "raised"],
        "The connection to the C10d store has failed",
    ),
    "no_other_launcher": (
        [*RENDEZVOUS, "join_timeout=1", "--rdzv-endpoint", "localhost:0", PROBE, "raised"],
        "RendezvousTimeoutError",
    ),
    "old_argument": (
        [sys.executable, launcher.ROOT / "lessons/older/local_rank.py", "--local-rank=0"],
        "error: unrecognized arguments: --local-rank=...",
    ),
}
CASES = {name: ([sys.executable, PROBE, name], message) for name, message in ALONE.items()}
CASES |= {
    name: (["torchrun", "--standalone", "--nproc-per-node", "2", PROBE, name], message)
    for name, message in TWO.items()
}
CASES |= COMMANDS


def pattern(message):
    """A heading as an expression: three dots stand for anything, and line breaks count as spaces."""
    return r"\s+".join(re.escape(word).replace(r"\.\.\.", ".*") for word in message.split())


def says(text, messages):
    return any(re.search(pattern(message), text) for message in messages)


@pytest.mark.quick("left_out", "module_names", "truncated", "unused_parameter")
@pytest.mark.night("addresses_of_an_old_run")
@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_heading_is_what_torch_prints(forked, name):
    words, message = CASES[name]
    result = forked(words, {"PYTHONWARNINGS": "default"})
    assert says(result.stderr, ENTRIES[message][0]), result.stderr


UNGUARDED = "import torch.multiprocessing as mp\ndef train(rank): pass\nmp.spawn(train, nprocs=1)\n"
SPAWNED = "process ... terminated with exit code 1"


@pytest.mark.night
def test_spawn_without_a_guard(start, tmp_path):
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    result = start("", words=[sys.executable, tmp_path / "unguarded.py"]).finish()
    (quoted,) = re.findall(r"`(An attempt .*?)`", ENTRIES[SPAWNED][1])
    assert says(result.stderr, [SPAWNED]) and says(result.stderr, [quoted]), result.stderr


def test_each_heading_was_provoked_or_says_where_it_was_seen():
    provoked = {message for _, message in CASES.values()} | {SPAWNED}
    assert len(ENTRIES) >= 30
    for message, (together, text) in ENTRIES.items():
        if provoked.isdisjoint(together):
            elsewhere = says(H100, [message]) if "**H100" in text else "](https://github.com/" in text
            assert elsewhere, f"{message}: neither provoked, nor seen on the H100, nor from a source"


def test_the_dots_of_a_heading_stand_for_what_differs():
    assert says("Invalid rank 2, in\n[0, 1]", ["Invalid rank ..., in [0, ...]"])
    assert not says("Invalid rank 2 in [0, 1]", ["Invalid rank ..., in [0, ...]"])


def test_an_entry_is_short():
    for message, (_, text) in ENTRIES.items():
        assert 8 <= len(text.split()) <= 85, message
