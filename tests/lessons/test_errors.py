"""The index of error messages: each heading is what torch prints, provoked here or seen elsewhere."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tools import launcher
from tools.makers import result_files

PAGE = (launcher.ROOT / "lessons/pages/errors.md").read_text()
PROBES = Path(__file__).resolve().parents[1] / "probes"
PROBE = PROBES / "provoke.py"
_, SEEN = result_files.read(result_files.FOLDER / "gpu-h100-2026-11-26.jsonl")
H100 = "\n".join(row["line"] for row in SEEN if row["kind"] == "printed")
ENTRIES = {}  # for each message, the others of its heading, with itself, and the text
for heading, text in re.findall(r"(?ms)^### (.+?)$\n(.*?)(?=^#|\Z)", PAGE):
    together = re.findall(r"`(.+?)`", heading)
    ENTRIES |= dict.fromkeys(together, (together, text))

PROVOKED = tomllib.loads((PROBES / "provoked.toml").read_text())
# What an own command runs into.
RENDEZVOUS = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-conf"]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2", PROBE]
OLD = launcher.ROOT / "lessons/older/local_rank.py"
COMMANDS = {
    "no_gpu": ["torchrun", "--nproc-per-node", "gpu", PROBE, "raised"],
    "no_host": [*RENDEZVOUS, "is_host=0,read_timeout=1", "--rdzv-endpoint", "localhost:9", PROBE, "raised"],
    "no_other_launcher": [*RENDEZVOUS, "join_timeout=1", "--rdzv-endpoint", "localhost:0", PROBE, "raised"],
    "old_argument": [sys.executable, OLD, "--local-rank=0"],
}
CASES = {name: ([sys.executable, PROBE, name], message) for name, message in PROVOKED["alone"].items()}
CASES |= {name: ([*TORCHRUN, name], message) for name, message in PROVOKED["two"].items()}
CASES |= {name: (words, PROVOKED["commands"][name]) for name, words in COMMANDS.items()}


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "values"), [("no_sampler", "[[0, 1], [0, 1]]\n"), ("own_plateau", "[0.1, 1]\n")]
)
def test_no_message_at_all(forked, name, values):
    result = forked([*TORCHRUN, name])
    assert (result.code, result.stdout) == (0, values), result.stderr


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
