"""Simulate a job, interruption by interruption, and compare it with the formulas."""

import heapq
import math
import random
import statistics
from typing import Any

from planner import formulas
from planner.plans import Plan
from planner.report import duration, line

RUNS = 200


def play(
    seconds: float,
    between: float,
    interval: float,
    save: float,
    restart: float,
    spares: int,
    repair: float,
    drawn: random.Random,
) -> dict[str, float]:
    """Simulate a job of `seconds`. Each interruption loses the unsaved progress, and a machine until
    it is repaired. A spare takes the machine's place, or the job waits for a repair.
    """
    clock = 0.0
    moved = 0.0
    waited = 0.0
    interruptions = 0
    back: list[float] = []  # when each machine in repair returns
    while clock < seconds:
        lasted = min(drawn.expovariate(1 / between), seconds - clock)
        clock += lasted
        worked = max(0.0, lasted - (restart if interruptions else 0))
        saves, rest = divmod(worked, interval + save)
        moved += saves * interval
        if clock >= seconds:
            moved += min(rest, interval)  # not lost: the job ends here without an interruption
            break
        interruptions += 1
        while back and back[0] <= clock:
            heapq.heappop(back)
        heapq.heappush(back, clock + drawn.expovariate(1 / repair))
        if len(back) > spares:
            start = min(heapq.heappop(back), seconds)
            waited += start - clock
            clock = start
    return {"interruptions": interruptions, "moving": moved / seconds, "waiting": waited / seconds}


def runs(found: Plan, seed: int, count: int = RUNS) -> dict[str, Any]:
    """Simulate `count` runs of a plan. Return for each figure the mean, its standard error, and the
    formulas' result.
    """
    job = found["job"]
    seconds = found["days"] * formulas.DAY
    between = formulas.seconds_between_failures(job["gpus"], job["failure_rate"])
    repair = job["repair_hours"] * 3600
    waiting = formulas.waiting_share(job["spares"], repair / between)
    drawn = random.Random(seed)
    limits = (found["checkpoint_interval_seconds"], job["save_seconds"], job["restart_seconds"])
    played = [play(seconds, between, *limits, job["spares"], repair, drawn) for _ in range(count)]
    expected = {  # nothing can break while the job waits
        "interruptions": found["interruptions"] * (1 - waiting),
        "moving": found["effective_time_ratio"] * (1 - waiting),
        "waiting": waiting,
    }
    figures = {}
    for name in expected:
        values = [one[name] for one in played]
        error = statistics.stdev(values) / math.sqrt(count)
        figures[name] = {"drawn": statistics.mean(values), "error": error, "expected": expected[name]}
    return {"seed": seed, "runs": count, "seconds": seconds, "figures": figures}


def text(found: Plan, played: dict[str, Any]) -> str:
    job, figures = found["job"], played["figures"]
    rows = [line("", "drawn", "+-", "formula")]
    names = {
        "interruptions": "unplanned interruptions",
        "moving": "effective training time",
        "waiting": "share of the time without a machine",
    }
    for name, words in names.items():
        form = "{:,.1f}" if name == "interruptions" else "{:.2%}"
        cells = [form.format(figures[name][kind]) for kind in ("drawn", "error", "expected")]
        rows.append(line(words, *cells))
    head = f"{played['runs']} runs of {duration(played['seconds'])} on {job['gpus']:,} GPUs"
    return f"{head}, with {job['spares']} spare machines (seed {played['seed']})\n" + "\n".join(rows)
