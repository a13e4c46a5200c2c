"""Lesson 18's text: the Python source of PyTorch, as pip has installed it, or a folder of your own.

PyTorch's source is under the BSD-3-Clause license, (c) the PyTorch contributors. A training run reads it
where pip has put it. LEFT_OUT names tests, files that programs have written, and code of other projects,
which is under other licenses.
"""

import gzip
import hashlib
import lzma
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import workload
from parts import bpe

TORCH = Path(torch.__file__).parent
LEFT_OUT = (
    "testing/",
    "version.py",  # differs between the builds for CPUs and for GPUs
    "_vendor/",
    "_appdirs.py",
    "_inductor/kernel/vendored_templates/",
    "distributed/_pycute/",
    "fx/experimental/unification/",
    "utils/viz/_cycles.py",
    "_inductor/autoheuristic/artifacts/",
    "_inductor/fx_passes/serialized_patterns/",
    "_numpy/_casting_dicts.py",
    "sparse/_triton_ops_meta.py",
    "utils/hipify/cuda_to_hip_mappings.py",
)
HELD_OUT = 0.05  # the share of files that no process trains on
ENOUGH_TO_LEARN = 8_000_000  # bytes from which the tokens are learned
BYTES_PER_TOKEN = 8  # more than any text has, so that a small --train-size reads few files


@dataclass
class Text:
    fingerprint: str
    encoder: bpe.Encoder
    bytes_per_token: float  # in the files to train on
    held_out_bytes_per_token: float


def load(arguments, rank, device):
    """Return the windows to train on, those that are held out, and what is known about the text.

    Rank 0 computes the tokens, and saves them for the other ranks and for the next run.
    """
    train, held_out = read(arguments)
    mark = fingerprint(train, held_out)
    path = arguments.out / f"{arguments.lesson}.tokens-{mark}-{arguments.tokens}.pt"
    start = time.perf_counter()
    makes_tokens = rank == 0 and not path.exists()
    if makes_tokens:
        make_tokens(train, held_out, arguments.tokens, path)
    seconds = time.perf_counter() - start
    ready = torch.ones((), device=device)
    dist.broadcast(ready, src=0)  # on GPUs, a barrier would warn
    ready.item()  # with NCCL, only this line waits for rank 0
    state = torch.load(path, weights_only=True)
    train_set = windows(state["train"], arguments.length, arguments.train_size)
    test_set = windows(state["held_out"], arguments.length)
    encoder = bpe.Encoder([tuple(pair) for pair in state["merges"]])
    known = len(encoder.bytes)
    if known < arguments.tokens:
        workload.refuse(f"this text has only {known} tokens: use more text, or --tokens {known}")
    text = Text(mark, encoder, ratio(train, state["train"]), ratio(held_out, state["held_out"]))
    require_enough(train_set, test_set, arguments)
    # Only now, because a run that is refused prints nothing but its error.
    if makes_tokens:
        print(f"tokens: learned {known:,}, encoded all files in {seconds:.0f} s, saved as {path}")
    if rank == 0:
        show(train, held_out, mark)
    return train_set.to(device), test_set.to(device), text


def read(arguments):
    """Return two dicts of files. Whether a file is held out depends only on its name."""
    train, held_out = {}, {}
    for share, name, path in sorted(list_files(arguments.text)):
        files, windows = (train, arguments.train_size)
        if share < HELD_OUT:
            files, windows = (held_out, arguments.test_size)
        if arguments.train_size:  # a short run, which needs only a part of the files
            enough = (windows + 1) * arguments.length * BYTES_PER_TOKEN
            if sum(map(len, files.values())) > enough:
                continue
        data = path.read_bytes().replace(b"\r\n", b"\n")
        if data and b"\0" not in data:  # a file with zeros is not text
            files[name] = data
    return train, held_out


def list_files(folder):
    """A number from 0 to 1 for each file, which depends only on its name, with the name and the path."""
    root = Path(folder or TORCH)
    files = []
    for path in root.rglob("*" if folder else "*.py"):
        name = path.relative_to(root).as_posix()
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if not path.is_file() or hidden or (folder is None and name.startswith(LEFT_OUT)):
            continue
        share = int(hashlib.sha256(name.encode()).hexdigest(), 16) / 2**256
        files.append((share, name, path))
    return files


def fingerprint(train, held_out):
    """Two runs with the same fingerprint read the same bytes."""
    digest = hashlib.sha256()
    for name, data in {**held_out, **train}.items():
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:12]


def make_tokens(train, held_out, count, path):
    learned_from, known = [], 0
    for data in train.values():
        if known < ENOUGH_TO_LEARN:
            learned_from.append(data)
            known += len(data)
    merges = bpe.learn(learned_from, count)
    encoder = bpe.Encoder(merges)
    state = {"merges": merges, "train": encode(encoder, train), "held_out": encode(encoder, held_out)}
    temporary = path.with_suffix(".temporary")
    torch.save(state, temporary)
    temporary.replace(path)


def encode(encoder, files):
    tokens = array("i")
    for data in files.values():
        tokens.extend(encoder.encode(data))
    return torch.tensor(tokens, dtype=torch.int32)


def windows(tokens, length, count=None):
    """Windows that touch, but do not overlap, and for each token the token that follows it."""
    if len(tokens) <= length:
        return workload.Images(torch.empty(0, length), torch.empty(0, length))
    rows = tokens.long().unfold(0, length + 1, length)[:count]
    return workload.Images(rows[:, :-1], rows[:, 1:])


def ratio(files, tokens):
    return sum(map(len, files.values())) / max(1, len(tokens))


def require_enough(train_set, test_set, arguments):
    """Refuse a text that is too short, or has too few files to hold one out."""
    wanted = max(arguments.batch_size, arguments.train_size or 0)
    if len(train_set) < wanted or len(test_set) < arguments.test_size:
        workload.refuse(
            f"this text has {len(train_set)} windows to train on and {len(test_set)} that are held out, and "
            f"this run needs {wanted} and {arguments.test_size}: use more text. About one file in "
            f"{1 / HELD_OUT:.0f} is held out, so split large files (split -C 50k)"
        )


def show(train, held_out, mark):
    """Print what is read, and how many bits per byte two compressors need for the held-out files."""
    for name, files in (("train on", train), ("hold out", held_out)):
        size = sum(map(len, files.values()))
        print(f"text {mark} | {name} | {len(files):5,} files | {size:10,} bytes")
    data = b"".join(held_out.values())
    small, smaller = (8 * len(packed) / len(data) for packed in (gzip.compress(data, 9), lzma.compress(data)))
    print(f"held out, bits per byte: gzip {small:.3f}, xz {smaller:.3f}", flush=True)
