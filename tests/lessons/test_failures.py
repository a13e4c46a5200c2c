"""A job played through beside the closed formulas, and Llama 3's 54 days."""

import json
import math
import random
import statistics

import pytest
from test_planner import LLAMA, call, job

from planner import __main__ as command
from planner import failures, formulas, plans

YEARS = 5 * 365 * formulas.DAY


@pytest.mark.parametrize("spares", [0, 2, 5, 40])
@pytest.mark.parametrize(
    ("between", "save", "restart"), [(7200, 60, 300), (1392, 60, 300), (11_135, 300, 900)]
)
def test_long_runs_agree_with_the_formulas_within_their_error(between, save, restart, spares):
    """Daly's sum while it runs, Erlang's while it waits for one of the machines in repair."""
    interval = formulas.checkpoint_interval(save, between, "daly")
    drawn, repair = random.Random(3), 4 * 3600
    seconds = YEARS / 40
    limits = (seconds, between, interval, save, restart, spares, repair)
    played = [failures.play(*limits, drawn) for _ in range(40)]
    waiting = formulas.waiting_share(spares, repair / between)
    moving = formulas.effective_time_ratio(interval, save, restart, between, "daly") * (1 - waiting)
    expected = {"moving": moving, "waiting": waiting, "interruptions": seconds / between * (1 - waiting)}
    for name, value in expected.items():
        found = [one[name] for one in played]
        error = statistics.stdev(found) / math.sqrt(len(found))
        # A run begins with all machines: in its first hours it has waited less than later.
        begin = 2 * repair / seconds * waiting * (value if name == "interruptions" else 1)
        assert abs(statistics.mean(found) - value) <= 4 * error + begin + 1e-9, name


def test_a_machine_is_missing_as_erlang_says():
    """One that breaks as often as it is repaired is there half of the time; with many in reserve, always."""
    assert formulas.waiting_share(0, 1) == pytest.approx(1 / 2)
    assert formulas.waiting_share(1, 1) == pytest.approx(1 / 5)
    erlang = 3**5 / 120 / sum(3**k / math.factorial(k) for k in range(6))
    assert formulas.waiting_share(4, 3) == pytest.approx(erlang)
    assert formulas.waiting_share(60, 8) < 1e-30


def test_a_run_that_nothing_interrupts_saves_and_moves():
    played = failures.play(1000, 1e12, 90, 10, 300, 0, 60, random.Random(0))
    assert played == {"interruptions": 0, "moving": 0.9, "waiting": 0}
    played = failures.play(1050, 1e12, 90, 10, 300, 0, 60, random.Random(0))
    assert played["moving"] == pytest.approx(950 / 1050), "the end is no interruption"


def test_llama_3s_54_days():
    """SOURCES["llama3-overall"], SOURCES["epoch"]: 16,384 GPUs. At the rate of all 466 interruptions, runs
    that are played have as many. Training moves on for 94.7% of the time where a save takes 2.5 s. With the
    planner's 60 s it is 86.9%, below the published 90%: so it saved faster than that, or lost less to a
    restart."""
    share = {}
    for save in (2.5, 60):
        between = formulas.seconds_between_failures(16_384, 466 / 419 * LLAMA)
        interval = formulas.checkpoint_interval(save, between, "daly")
        limits = (54 * formulas.DAY, between, interval, save, 300, 30, formulas.DAY)
        drawn = random.Random(54)
        played = [failures.play(*limits, drawn) for _ in range(100)]
        share[save] = statistics.mean(one["moving"] for one in played)
        found = statistics.mean(one["interruptions"] for one in played)
        assert found == pytest.approx(466, abs=4 * math.sqrt(466 / 100))
        exact = formulas.effective_time_ratio(interval, save, 300, between, "daly")
        assert share[save] == pytest.approx(exact, abs=0.002)
    assert share[2.5] > 0.9 > share[60]
    assert (share[2.5], share[60]) == pytest.approx((0.947, 0.869), abs=0.002)


def test_the_command_plays_the_same_with_one_seed(capsys):
    options = "--params 70e9 --gpus 1024 --tensor-parallel 8 --spares 0 --repair-hours 6"
    words, said = options.split(), []
    for seed in ("1", "1", "2"):
        command.main([*words, "--play", seed])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    assert said[0].startswith("200 runs of 19.3 days on 1,024 GPUs, with 0 spare machines (seed 1)\n")
    figures = json.loads(call(*words, "--play", 1, "--json").stdout)["figures"]
    plan = plans.plan(job(params=70e9, gpus=1024, tensor_parallel=8))
    waiting = formulas.waiting_share(0, plan["interruptions"] / plan["days"] / 4)
    assert figures["waiting"]["expected"] == pytest.approx(waiting)
    assert f"{figures['moving']['drawn']:.2%}" in said[0]
