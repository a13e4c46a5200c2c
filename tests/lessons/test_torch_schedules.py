"""What the planner and lesson 10 say of pipelines, against the lists of torch.distributed.pipelining."""

import itertools
import json
import re
import subprocess
import sys
from argparse import Namespace

import pytest

from lessons import ROOT
from parts import stages, timeline
from planner import formulas


@pytest.fixture(scope="module")
def listed():
    """For (processes, chunks, microbatches): what each process does in order, or None where torch refuses."""
    words = [sys.executable, ROOT / "tests/probes/torch_schedules.py"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    found = map(json.loads, result.stdout.splitlines())
    return {(row["processes"], row["chunks"], row["microbatches"]): row["orders"] for row in found}


def events_of(orders, last, backward=2):
    """Lesson 10's events, where a forward takes 1, a backward 2, and a message nothing."""
    ended, seen = {}, {}
    waiting, rows = [list(order) for order in orders], [[] for _ in orders]
    while any(waiting):
        before = len(ended)
        for rank, line in enumerate(waiting):
            while line:
                kind, stage = line[0]
                number = seen.get((rank, kind, stage), 0)
                if kind == "forward":
                    needs = [("forward", stage - 1, number)] if stage else []
                else:
                    needs = [("forward", last, number) if stage == last else ("backward", stage + 1, number)]
                if any(need not in ended for need in needs):
                    break
                before_this = [event["end"] for event in rows[rank][-1:]]
                begin = max([0, *before_this, *(ended[need] for need in needs)])
                end = ended[kind, stage, number] = begin + (1 if kind == "forward" else backward)
                rows[rank].append({"begin": begin, "end": end})
                seen[rank, kind, stage] = number + 1
                line.pop(0)
        assert len(ended) > before, "the processes wait for each other for ever"
    return rows


def test_idle_shares_are_those_of_torchs_lists(listed):
    for (processes, chunks, microbatches), orders in listed.items():
        if orders is None:
            continue
        sizes = {"world_size": processes, "stages": processes * chunks, "microbatches": microbatches}
        for backward in (1, 2):
            values = sizes | {"events": events_of(orders, processes * chunks - 1, backward)}
            idle = timeline.idle(values)
            share = formulas.pipeline_idle_share(processes, microbatches, chunks)
            assert share == pytest.approx(idle, abs=1e-12), (processes, chunks, microbatches)
            assert timeline.idle_in_theory(values) == pytest.approx(idle, abs=1e-12)
    assert formulas.pipeline_idle_share(8, 4, 4) == pytest.approx(0.543, abs=5e-4)


def test_what_the_first_stage_holds_is_what_torchs_lists_hold(listed):
    """Korthikanti's 1 + (p - 1)/(p v) is the case of more micro-batches than stages."""
    for (processes, chunks, microbatches), orders in listed.items():
        if orders is None:
            continue
        held = []
        for line in orders:
            steps = [1 if kind == "forward" else -1 for kind, _ in line]
            held.append(max(itertools.accumulate(steps)) / (processes * chunks))
        found = formulas.pipeline_held(processes, microbatches, chunks)
        assert found == max(held) == held[0], (processes, chunks, microbatches)
    assert formulas.pipeline_held(8, 64, 4) == pytest.approx(1 + 7 / 32)
    assert formulas.pipeline_held(16, 16, 8) == formulas.pipeline_held(4, 4) == 1
    assert formulas.pipeline_held(8, 2) == 1 / 4


def test_lesson_10_refuses_what_torch_refuses(listed, capsys):
    options = {"batch_size": 12 * 11 * 10 * 7 * 32, "pretend_milliseconds": 0, "timeline": False}
    for (processes, chunks, microbatches), orders in listed.items():
        if processes > 4 or chunks > 2 or options["batch_size"] % microbatches:
            continue
        options |= {"world_size": processes, "microbatches": microbatches}
        options["schedule"] = "1f1b" if chunks == 1 else "interleaved"
        if orders is None:
            with pytest.raises(SystemExit):
                stages.check(Namespace(**options))
            said = capsys.readouterr().err
            taken = re.search("take (.+)", said) or re.search("needs (.+) micro-batches", said)
            assert listed[processes, chunks, int(taken[1])], said
        else:
            stages.check(Namespace(**options))
