"""What the notebook on the collectives stands on: processes that stay, pictures of what they hold."""

import json
import re
import runpy
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pytest
import torch.distributed as dist

import launcher
import notebooks
from meshes import run_probe

sys.path.insert(0, str(launcher.ROOT / "notebooks"))
from show import collectives, pictures

STEM = "02a_the_collectives"


@pytest.fixture
def ranks():
    ranks = collectives.Ranks(2, limit=3)
    yield ranks
    ranks.close()


@pytest.fixture
def shown(monkeypatch):
    shown = []
    monkeypatch.setattr(pictures, "display", shown.append)
    with plt.rc_context(pictures.STYLE):  # as show.start() sets it
        yield shown
    plt.close("all")


def test_ranks_say_what_they_hold_how_long_they_waited_and_what_they_moved(ranks):
    line = "dist.gather(chunk, empty_chunks if rank == 0 else None, dst=0)"
    answers = ranks.run(line, "chunk", "empty_tensor if rank == 0 else None")
    assert [one["before"] for one in answers] == [[1], [20]]
    assert [one["after"] for one in answers] == [[1, 20], None]
    answers = ranks.run("dist.all_reduce(tensor)", "None", "None", late=1, seconds=1.5)
    first, second = (one["waited"] for one in answers)
    assert first > 1 > second
    assert collectives.who_waits([0.5, 0.1]) == [0]
    counted = ranks.count("dist.broadcast(tensor, src=0)")
    if sys.platform == "linux":
        assert counted[0] == pytest.approx([1, 0], abs=0.01) and counted[1] == pytest.approx([0, 1], abs=0.01)
    else:
        assert counted is None
    with pytest.raises(RuntimeError, match="rank 0: NameError: name 'nobody' is not defined\nrank 1: Name"):
        ranks.run("nobody")
    assert ranks.running == []


@pytest.mark.long
def test_after_a_hang_they_are_started_anew_and_in_the_end_they_are_gone(ranks):
    with pytest.raises(RuntimeError, match=r"RuntimeError: Timed out waiting 3000ms for \w+ operation"):
        ranks.run("if rank == 0:\n    dist.all_reduce(tensor)")
    assert [one["after"] for one in ranks.run("dist.all_reduce(tensor)")] == [[11, 22]] * 2
    processes = [one.process for one in ranks.running]
    ranks.close()
    assert [process.returncode for process in processes] == [0, 0], "they end by themselves"


def test_a_picture_has_the_numbers_that_came_back_and_words(ranks, shown):
    ranks.run = lambda *request: [{"before": [1, 2], "after": None}, {"before": [10, 20], "after": [11]}]
    assert ranks.picture("name", "line", "tensor", "chunk") == [None, [11]]
    assert ranks.lines == {"name": "line"}
    (image,) = shown
    assert image.width == 380
    assert image.alt == (
        "name. What each rank holds before: rank 0 1 2, rank 1 10 20; after: rank 0 nothing, rank 1 11"
    )


def test_a_chunk_is_drawn_where_its_rank_is_in_the_colour_of_its_digits():
    before, after = collectives.draw_held([[1, 2], [10, 20]], [[1], [22]]).axes
    places = {text.get_text(): text.get_position() for text in before.texts}
    assert places == {"1": (0, 0), "2": (0, 1), "10": (1, 0), "20": (1, 1)}
    colours = [(*collectives.tile(collectives.RANKS[chunk], 0.3), 1) for chunk in (0, 1, 0, 1)]
    assert [patch.get_facecolor() for patch in before.patches] == colours
    places = {text.get_text(): text.get_position() for text in after.texts}
    assert places == {"1": (0, 0), "22": (1, 1)}, "a single chunk stands in the row of its rank"
    one, two = (patch.get_facecolor() for patch in after.patches)
    assert min(two) < min(one), "the more were added, the stronger"
    assert [text.get_fontweight() for text in after.texts] == ["normal", "bold"]
    plt.close("all")


def test_the_picture_of_waits_has_who_was_late_and_who_waited(shown):
    waits = {"all-reduce": {0: [0.0, 0.5]}, "broadcast": {0: [0.0, 0.01]}}
    collectives.picture_of_waits(waits)
    assert shown[0].alt == "Which ranks wait. all-reduce: 1 for rank 0; broadcast: nobody for rank 0"
    axes = collectives.draw_waits(waits).axes[0]
    assert [text.get_text() for text in axes.texts] == ["late", "0.5", "late", "0.0"]
    assert [patch.get_facecolor()[3] > 0 for patch in axes.patches] == [False, True, False, False]


def test_older_releases_have_other_names(monkeypatch):
    for name in ("all_gather_single", "reduce_scatter_single"):
        monkeypatch.setattr(dist, name, None)  # so that what rank.py sets is undone
        monkeypatch.delattr(dist, name)
    monkeypatch.syspath_prepend(launcher.ROOT / "notebooks/show/inside")
    runpy.run_path(str(launcher.ROOT / "notebooks/show/rank.py"), run_name="rank")
    assert dist.all_gather_single is dist.all_gather_into_tensor
    assert dist.reduce_scatter_single is dist.reduce_scatter_tensor


@pytest.mark.quick("10_pipeline", "11_tensor_parallel")
@pytest.mark.night
@pytest.mark.parametrize(
    "stem",
    ["04_ddp_torchrun", "09_fsdp", "10_pipeline", "11_tensor_parallel", "15_context_parallel", "16_experts"],
)
def test_the_lessons_call_what_the_notebook_says(forks, tmp_path, stem):
    """Its table is compared with what torch's profiler sees. DDP is looked at in lesson 04, since the
    processes that lesson 03 spawns would not be profiled."""
    code = notebooks.sources(notebooks.read(notebooks.FOLDER / f"{STEM}.ipynb"), "code")
    rows = re.findall(r'^    \("([\w, -]*)", "(\w+)", ".+", ".+"\),$', code, re.M)
    assert len(rows) == 12
    said, name = set(), ""
    for names, lesson, *_ in rows:
        name = names or name
        if lesson == stem.replace("04_ddp_torchrun", "03_ddp_spawn").split("_")[0]:
            said |= {word.replace("-", "_").replace("receive", "recv") for word in name.split(", ")}
    command = launcher.command(stem, 2, "--epochs", 1, "--train-size", 120, "--test-size", 24)
    result = run_probe(forks, tmp_path, "which_collectives", command, stem)
    assert result.code == 0, result.stderr
    seen = json.loads((tmp_path / "collectives-0.json").read_text())
    assert said and said <= set(seen), seen
    unsaid = {"reduce", "barrier", "all_to_all"} & set(seen) - said
    assert not unsaid, "the notebook says that the lessons do not call these, or only others"
