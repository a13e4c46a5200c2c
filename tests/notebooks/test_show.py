"""The module beside the notebooks."""

import itertools
import json
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys

import matplotlib

from tests.helpers.lines import column

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pytest
import torch
from torch.nn.functional import cross_entropy

import show
import workload
from show import critical_batch, s03b_buckets, slow_links
from show import s02_replicas as replicas
from show import s02a_collectives as collectives
from show import s03a_rings as rings
from show import s06_nodes as nodes
from show import s10_pipelines as pipelines
from show import s11_tensors as tensors
from show import s13a_dry as dry
from show import s18a_budget as budget
from tests.helpers.probe_runs import run_probe
from tools import launcher, lessons, notebooks
from tools.makers.bench import slow_links as measuring
from tools.testbed import hosts
from tools.testbed.processes import is_alive


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path))
    with plt.rc_context():
        yield show.start("test")
    plt.close("all")


def script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_start_empties_only_its_own_folder(out):
    for place in ("mine/old", "other/kept"):
        (out.parent / place).mkdir(parents=True)
    assert list(show.start("mine").iterdir()) == []
    assert (out.parent / "other/kept").exists()


def test_run_streams_what_a_command_writes_and_checks_its_status(out, capsys):
    path = script(out, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    running = show.run(f"GREETING=hello python {path}", code=3)
    first, *rest = capsys.readouterr().out.replace(" \\\n   ", "").splitlines()  # a long command is folded
    assert first == f"$ GREETING=hello python {path}" and rest == ["one", "two"]
    assert running.code == 3 and running.text == "one\ntwo\n"
    with pytest.raises(RuntimeError, match="status 3, not 0"):
        show.run(f"python {path}")
    path = script(out, "import os, sys; print(os.environ['GREETING'], sys.executable)")
    assert show.run(f"GREETING=hello python {path}").text.startswith("hello")


def test_a_command_is_started_with_the_python_of_the_notebook(out, tmp_path, monkeypatch):
    """On Colab torchrun is not beside python, and a PATH may lead to the Python of somebody else."""
    for name in ("python", "torchrun"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    path = script(out, "import sys; print(sys.executable == sys.argv[1])")
    for command in ("python", "torchrun --standalone --nproc-per-node 1"):
        assert show.run(f"{command} {path} {sys.executable}").text.splitlines()[-1] == "True"


def test_what_hangs_is_ended_with_its_children(out, capsys):
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    text = f"import subprocess, sys, time\nprint(subprocess.Popen({child}).pid); time.sleep(60)"
    running = show.run(f"python {script(out, text)}", limit=6, code=None)
    assert "still running after 6 seconds" in capsys.readouterr().out
    assert not is_alive(int(running.text))


FAMILY = """
import os, subprocess, sys, time
left = int(sys.argv[1])
print(os.getpid(), left, flush=True)
if left:
    subprocess.Popen([sys.executable, __file__, str(left - 1)])
time.sleep(60)
"""


def test_the_end_of_a_command_is_the_end_of_what_its_children_have_started(out):
    running = show.launch(f"python {script(out, FAMILY)} 2", quiet=True)
    running.until(" 0\n")
    pids = [int(line.split()[0]) for line in running.text.splitlines()]
    assert len(pids) == 3
    in_the_tree = [process.pid for process in running.tree()]
    assert in_the_tree == pids
    running.end()
    for pid in pids:
        assert not is_alive(pid)


def test_ranks_that_hang_are_named_and_ended(out, capsys):
    path = script(out, "import os, time\nif os.environ['RANK'] == '1': time.sleep(60)")
    running = show.ranks(path, 2, limit=6)
    assert running[0].code == 0 and running[1].code == -signal.SIGKILL
    assert capsys.readouterr().out == "(rank 1: still there after 6 seconds, ended by the notebook)\n"


def test_a_rank_that_aborts_is_an_error_even_after_its_result(out):
    """A thread of gloo that is left does that as Python ends, when all has been said."""
    text = "import os\nopen(os.environ['RESULT'], 'w').write('1')\nif os.environ['RANK'] == '1': os.abort()"
    with pytest.raises(RuntimeError, match="rank 1 aborted"):
        show.ranks(script(out, text), 2, quiet=True)


def test_a_diff_has_a_sentence_for_each_place(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("one\ntwo\nthree\nfour\nfive\nsix\n")
    (tmp_path / "b.py").write_text("one\nTWO < b\nthree\nfour\nfive\nsix\nseven\n")
    monkeypatch.setattr(show.text, "LESSONS", tmp_path)
    shown = show.Diff("a", "b", {"TWO": "Now it is `loud`.", "seven": "One more."})
    assert repr(shown) == "# Now it is `loud`.\n- two\n+ TWO < b\n\n# One more.\n+ seven\n"
    assert shown._repr_markdown_() == (
        "`a.py` to `b.py`\n\n"
        "Now it is `loud`.\n\n```diff\n  one\n- two\n+ TWO < b\n  three\n```\n\n"
        "One more.\n\n```diff\n  six\n+ seven\n```"
    )
    to_correct = r"^notebooks/show/sentences\.py, b: "
    with pytest.raises(ValueError, match=to_correct + "2 places differ, but there are 1 sentences"):
        show.Diff("a", "b", {"TWO": "x"})
    with pytest.raises(ValueError, match=to_correct + "place 1, which .* 'two', does not change 'seven'"):
        show.Diff("a", "b", {"seven": "y", "TWO": "x"})
    with pytest.raises(ValueError, match=to_correct + r"no line before the next place begins with '\+ six'"):
        show.Diff("a", "b", {"TWO": "x", "+ six": "y", "seven": "z"})


def test_a_missing_sentence_is_named_before_a_notebook_is_executed(monkeypatch):
    monkeypatch.setitem(show.sentences.SENTENCES, "05_snapshots", {})
    monkeypatch.setattr(notebooks, "make", lambda path: pytest.fail("it was executed"))
    with pytest.raises(SystemExit, match=r"error: notebooks/show/sentences\.py, 05_snapshots: 5 places"):
        notebooks.main(["05_snapshots"])


def test_a_picture_is_sharp_and_says_in_words_what_it_shows(out, monkeypatch):
    shown = []
    monkeypatch.setattr(show.pictures, "display", shown.append)
    plt.figure(figsize=(4, 3)).add_subplot().set_xlabel("steps")
    show.picture("The loss falls.")
    _, metadata = shown[0]._repr_mimebundle_()
    assert metadata["image/png"] == {"width": 440, "alt": "The loss falls."}
    width = int.from_bytes(shown[0].data[16:20])
    assert width == 880, "two dots for one"
    assert plt.get_fignums() == [], "else Jupyter would show it again"


def light(colour):
    red, green, blue = map(linear, matplotlib.colors.to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear(channel):
    if channel <= 0.04045:
        return channel / 12.92
    return ((channel + 0.055) / 1.055) ** 2.4


def contrast(one, other):
    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_pictures_can_be_read_on_white_and_on_dark_pages(out):
    """They have no ground of their own: ink and ranks' colours stand out from both, and are not the same."""
    for name in ("figure.facecolor", "savefig.facecolor", "axes.facecolor"):
        assert matplotlib.colors.to_rgba(plt.rcParams[name])[3] == 0
    for page in ("#ffffff", "#0d1117"):  # GitHub's
        assert contrast(show.INK, page) > 4
        for colour in show.RANKS:
            assert contrast(colour, page) > 1.9


# ---- the collectives


@pytest.mark.long
def test_after_an_error_and_a_hang_they_are_started_anew_and_in_the_end_they_are_gone():
    ranks = collectives.Ranks(2, limit=3)
    with pytest.raises(RuntimeError, match="rank 0: NameError: name 'nobody' is not defined\nrank 1: Name"):
        ranks.run("nobody")
    with pytest.raises(RuntimeError, match=r"RuntimeError: Timed out waiting 3000ms for \w+ operation"):
        ranks.run("if rank == 0:\n    dist.all_reduce(tensor)")
    assert column(ranks.run("dist.all_reduce(tensor)"), "after") == [[11, 22]] * 2
    first, second = ranks.running
    ranks.close()
    assert first.process.returncode == second.process.returncode == 0, "they end by themselves"


def test_a_picture_of_time_says_who_waited_and_keeps_its_line_for_the_tables(out, monkeypatch):
    said = []
    monkeypatch.setattr(collectives, "picture", lambda alt, figure: said.append(alt))
    ranks = collectives.Ranks(2)
    monkeypatch.setattr(ranks, "wait", lambda line, late: [0.5, 0.0])
    assert ranks.picture_of_time("barrier", "dist.barrier()", late=1) == [0.5, 0.0]
    assert said[0].startswith("barrier. Rank 1 is half a second late.")
    assert said[0].endswith("rank 0 0.5 s, rank 1 0.0 s")
    assert ranks.lines == {"barrier": "dist.barrier()"}


@pytest.mark.quick("10_pipeline", "11_tensor_parallel")
@pytest.mark.night
@pytest.mark.parametrize(
    "stem",
    ["04_ddp_torchrun", "09_fsdp", "10_pipeline", "11_tensor_parallel", "15_context_parallel", "16_experts"],
)
def test_the_lessons_call_what_the_notebook_says(forks, tmp_path, stem):
    """Its table is compared with what torch's profiler sees. DDP is looked at in lesson 04, since the
    processes that lesson 03 spawns would not be profiled."""
    code = notebooks.sources(notebooks.read(notebooks.FOLDER / "02a_the_collectives.ipynb"), "code")
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


# ---- replicas


def test_the_gradients_are_those_of_the_whole_batch_however_uneven_the_parts():
    digits = workload.draw_digits(5, seed=1)
    model = workload.ConvNet((1, 28, 28))

    def gradients(forward):
        model.zero_grad()
        cross_entropy(forward(digits.images), digits.labels).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    parallel = replicas.DataParallel(model, [torch.device("cpu")] * 4)
    torch.testing.assert_close(gradients(parallel), gradients(model), rtol=1e-4, atol=1e-7)


# ---- somebody else's weights


def test_without_safetensors_it_says_in_one_line_how_to_install_it():
    needed = next(row.needs for row in lessons.NOTEBOOKS if row.stem == "09a_fine_tuning").partition(": ")[2]
    scripts = launcher.ROOT / "notebooks/show/rank_scripts"
    words = [sys.executable, "-c", "import sys; sys.modules['safetensors'] = None; import s09a_fine_tuning"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(scripts), *sys.path])}
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stderr) == (2, f"error: this notebook needs safetensors: {needed}\n")
    assert (launcher.ROOT / needed.split()[-1]).exists()


# ---- fewer bytes


@pytest.mark.long
def test_what_should_be_the_same_is_the_same(tmp_path):
    """Weights averaged after each step are DDP's, since SGD is linear in the gradients; and DiLoCo with an
    outer rate of 1 and no momentum is local SGD."""
    runs = []
    for way in ("ddp", "local_sgd 1", "local_sgd 5", "diloco 5 1 1e-9"):
        runs.append({"way": way, "epochs": 1, "look_every": 5})
    script = shutil.copy(measuring.SCRIPT, tmp_path)
    asked = {"RUNS": json.dumps(runs), "SIZES": "[2400, 100]"}
    found = show.ranks(script, 2, limit=100, environment=asked, quiet=True)[0].result
    ddp, each_step, local, diloco = (column(rows, "loss") for rows in found)
    assert each_step == pytest.approx(ddp, rel=1e-5)
    assert diloco == pytest.approx(local, rel=1e-5)
    assert local != pytest.approx(ddp, rel=3e-5)


def test_the_notebook_shows_what_the_newest_file_holds():
    result = slow_links.newest()
    cells = notebooks.read(notebooks.FOLDER / "07a_fewer_bytes.ipynb").cells
    said = []
    for cell in cells:
        said += notebooks.texts(cell)
    shown = show.Table(slow_links.head(result), slow_links.table(result))
    assert shown._repr_markdown_() in said, "make notebooks ARGUMENTS=07a_fewer_bytes"


@pytest.mark.night
def test_a_slow_link_is_as_slow_as_it_says(tmp_path):
    """20 steps of DDP send 20 x 129 KB from each of two hosts; local SGD sends that once."""
    if hosts.why_not():
        pytest.skip(hosts.NEEDED)
    run = {"epochs": 1, "look_every": 20}
    runs = [run | {"way": "ddp"}, run | {"way": "local_sgd"}]
    (ddp, *_), (local, *_) = measuring.on_two_hosts(tmp_path, "10mbit", runs, (2400, 100))
    assert 20 * 129_128 < ddp["sent"] < 1.05 * 20 * 129_128
    assert 19 < ddp["sent"] / local["sent"] < 21
    assert ddp["seconds"] > 0.9 * 8 * ddp["sent"] / 10e6


# ---- notebook 03a -------------------------------------------------------------------------------


def reduce_scatter(world_size):
    """The first half of a ring: in each step, every rank passes a chunk on to the right."""
    steps = []
    for step in range(world_size - 1):
        steps.append([])
        for rank in range(world_size):
            steps[-1].append((rank, (rank + 1) % world_size, (rank - step) % world_size, "add"))
    return steps


def test_the_second_half_of_a_ring_passes_the_complete_chunks_on():
    assert rings.all_gather(3) == [
        [(0, 1, 1, "replace"), (1, 2, 2, "replace"), (2, 0, 0, "replace")],
        [(0, 1, 0, "replace"), (1, 2, 1, "replace"), (2, 0, 2, "replace")],
    ]


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_after_both_halves_of_a_ring_every_process_has_every_sum(world_size):
    everyone = set(range(world_size))
    states = rings.play(world_size, reduce_scatter(world_size) + rings.all_gather(world_size))
    assert len(states) == 1 + 2 * (world_size - 1)
    after_the_first_half = states[world_size - 1]
    for rank, chunks in enumerate(after_the_first_half):
        assert chunks[(rank + 1) % world_size] == everyone
        assert chunks.count(everyone) == 1
    assert states[-1] == [[everyone] * world_size] * world_size


def test_a_wrong_ring_is_not_drawn():
    with pytest.raises(AssertionError, match="not everyone has the sum"):
        rings.play(3, reduce_scatter(3))
    with pytest.raises(AssertionError, match="counted twice"):
        rings.play(2, [[(0, 1, 0, "add")], [(0, 1, 0, "add")]])


# ---- notebook 06 --------------------------------------------------------------------------------


class Launcher:
    """A launcher that has written these lines, and writes no more."""

    def __init__(self, *lines):
        self.news = queue.Queue()
        for line in lines:
            self.news.put(line)
        self.has_ended = False

    def end(self):
        self.has_ended = True


def test_a_watch_prints_the_lines_that_matter_and_knows_when_they_came(capsys):
    watch = nodes.Watch()
    watch.launchers = {
        0: Launcher("noise\n", "epoch  1 | loss 2.1\n", None),
        1: Launcher("epoch  2 | loss 2.0\n"),
    }
    watch.until(lambda: len(watch.events) == 2)
    (first, *event), (second, *other_event) = watch.events
    assert event == [0, "epoch  1 | loss 2.1"]
    assert other_event == [1, "epoch  2 | loss 2.0"]
    assert watch.first("epoch") == first <= second == watch.first("epoch", after=first)
    printed = capsys.readouterr().out
    assert re.sub(r"[\d.]+ s", "0.1 s", printed) == (
        "  0.1 s  node 0 | epoch  1 | loss 2.1\n  0.1 s  node 1 | epoch  2 | loss 2.0\n"
    )


def test_a_watch_at_which_nothing_happens_ends_all_launchers():
    launcher, other_launcher = Launcher(), Launcher()
    watch = nodes.Watch()
    watch.launchers = {0: launcher, 1: other_launcher}
    with pytest.raises(AssertionError, match="nothing more happens"):
        watch.until(lambda: False, limit=0.1)
    assert launcher.has_ended and other_launcher.has_ended


# ---- notebook 03b -------------------------------------------------------------------------------


def test_a_full_bucket_travels_while_the_next_one_fills():
    states = {}
    for done in range(1, 8):
        states[done] = s03b_buckets.filling(room=3, layers=6, done=done)
        (first, first_does), (second, second_does) = states[done]
        assert first + second == min(done, 6)
        assert (first_does == "waits") == (first < 3)
        assert (second_does == "waits") == (second < 3)
    assert states[3] == [(3, "sent"), (0, "waits")]
    assert states[5] == [(3, "on its way"), (2, "waits")]
    assert states[6][1] == (3, "sent")
    assert states[7] == [(3, "averaged"), (3, "averaged")]


# ---- notebook 18a -------------------------------------------------------------------------------

SENDER = """
import json, os, time
import torch
from s03b_two_ranks import rank, together
from s18a_link import bf16, fp32, register
from torch import nn

def work():
    seconds = []
    for send in (fp32, bf16):
        model = nn.parallel.DistributedDataParallel(nn.Linear(250, 1000, bias=False))
        register(model, send)
        for _ in range(2):
            start = time.monotonic()
            model(torch.ones(1, 250)).sum().backward()
            seconds.append(time.monotonic() - start)
    return seconds

together(work)
"""


def test_where_the_kernel_cannot_limit_a_link_a_hook_waits_as_long(out):
    """At 10 Mbit/s, 1 MB takes 0.8 seconds, and half of it in 16 bits."""
    script = out / "sender.py"
    script.write_text(SENDER)
    for running in show.ranks(script, 2, environment={"SIMULATED_MBIT": 10}):
        whole, half = running.result[1], running.result[3]
        assert whole >= 0.8 > half >= 0.4


def allocation(time, size, total):
    about = {"Bytes": size, "Total Allocated": total}
    return {"name": "[memory]", "ts": time, "args": about}


def test_memory_is_counted_from_the_begin_of_a_trace(tmp_path):
    """An earlier trace of the process has left 7 bytes in the profiler's total."""
    phase = {"name": "forward", "cat": "user_annotation", "ts": 2000, "dur": 3000}
    events = [allocation(4000, -30, 77), phase, allocation(1000, 100, 107)]
    path = tmp_path / "trace"
    path.write_text(json.dumps({"traceEvents": events}))
    found = budget.read_memory(path, 1000)
    assert found["memory"] == [(0, 1100), (3, 1070)] and found["peak"] == 1100
    assert found["phases"] == [(1, 4, "forward")]


def test_the_parts_of_a_step_add_up_and_what_is_hidden_lies_inside():
    threads = {
        "python": [
            (0, 10, "forward"),
            (10, 18, "backward"),
            (20, 30, "backward"),
            (50, 55, "update"),
            (12, 13, "handed over"),
        ],
        "gloo": [(13, 20, "all_reduce"), (28, 45, "all_reduce")],
    }
    row = budget.budget([{"begin": 0, "ms": 60, "threads": threads}])
    assert row.pop("hidden") == 7 and row.pop("head start") == 30 - 13
    assert row.pop("step") == sum(row.values()) == 60
    assert list(row.values()) == [10, 18, 17, 5, 10]


def test_the_pictures_of_18a_say_their_numbers(out, monkeypatch):
    said = []
    monkeypatch.setattr(budget, "picture", said.append)
    budget.draw_four({"weights": 5e6, "activations": 66.7e6})
    one = {"fixed": 1e6, "memory": [(0, 1e6), (2, 9e6), (4, 1e6)], "phases": [(0, 2, "forward")], "peak": 9e6}
    budget.draw_memory({"as it is": one, "other": one}, {"kept": 8e6})
    row = {"communication, not hidden": 30, "hidden": 12}
    budget.draw_communication({"small buckets": row, "bf16": row}, {"all gradients": 44}, ["bf16"])
    four, memory, communication = said
    assert "weights 5.0, activations 66.7" in four
    assert "as it is: 9 MB" in memory and "kept at 8.0 MB" in memory
    assert "small buckets: 30 ms not hidden, 12 ms hidden" in communication
    assert "all gradients 44 ms in fp32, half in bf16" in communication


def test_the_timeline_of_18a_is_of_the_step_with_the_median_length(out, monkeypatch):
    """The red band begins where backward ends, and ends where the last bucket has been sent."""
    said = []
    monkeypatch.setattr(budget, "picture", said.append)
    steps = []
    for milliseconds in (70, 60, 50):
        python = [(0, 10, "forward"), (10, milliseconds - 40, "backward"), (12, 13, "handed over")]
        gloo = [(13, milliseconds - 15, "all_reduce")]
        steps.append({"begin": 0, "ms": milliseconds, "threads": {"python": python, "gloo": gloo}})
    budget.draw_rank_0({"a small step": steps[:1], "one of three": steps})
    assert (
        "With one of three, backward ends at 20 ms, the first of 1 bucket(s) is handed over at 12" in said[0]
    )
    assert "and the last has been sent at 45 ms" in said[0]
    for axes, begin, end in zip(plt.gcf().axes, (30, 20), (55, 45), strict=True):
        texts = [text.get_text() for text in axes.texts]
        assert f"after backward:\n{end - begin:.0f} ms" in texts
        band = axes.patches[0]
        assert (band.get_x(), band.get_width()) == (begin, end - begin)


def test_what_18a_says_about_a_slow_link_is_checked():
    """The right numbers keep all rules. Each row of `wrong` breaks one of them."""

    def row(shown, hidden, head_start):
        return {"communication, not hidden": shown, "hidden": hidden, "head start": head_start}

    least = {"all gradients": 100, "embedding": 60}
    right = {"whole": row(90, 10, 20), "small": row(70, 30, 40), "half": row(40, 15, 20)}
    right["both"] = row(35, 20, 40)
    budget.check(right, least)
    wrong = {"whole": row(80, 9, 20), "small": row(50, 45, 50), "half": row(71, 1, 20)}
    wrong["both"] = row(35, 41, 40)
    for setting, numbers in wrong.items():
        with pytest.raises(AssertionError):
            budget.check(right | {setting: numbers}, least)


# ---- notebook 10 --------------------------------------------------------------------------------


def test_the_picture_of_a_step_by_hand_gives_each_device_its_share(out, monkeypatch, capsys):
    """The first device works for 1 + 3 of 10 seconds, and the second one for 2 + 4."""
    said = []
    monkeypatch.setattr(pipelines, "picture", said.append)
    pipelines.draw_by_hand([5, 6, 8, 12, 15])
    assert "The first works for 40% of the time, the second for 60%." in said[0]
    printed = capsys.readouterr().out
    assert printed == "the first device works for 40% of the step, the second for 60%\n"


# ---- notebooks 11 and 13a -----------------------------------------------------------------------


def test_the_bars_of_11_are_as_long_as_what_is_kept(out, monkeypatch):
    said = []
    monkeypatch.setattr(tensors, "picture", said.append)
    tensors.draw_kept({"data": 8e6, "tensor": 5e6, "sequence": 4.5e6})
    lengths = [bar.get_width() for bar in plt.gca().patches]
    assert lengths == [8, 5, 4.5]
    assert "one process 8.00 MB, tensor parallel 5.00 MB, sequence parallel 4.50 MB" in said[0]


def test_the_bars_of_13a_stand_on_each_other(out, monkeypatch):
    few = dict(zip(dry.PARTS, (1e9, 2e9, 3e9, 4e9, 5e9), strict=True))
    many = dict.fromkeys(dry.PARTS, 1e9)
    monkeypatch.setattr(dry, "SIZES", (8, 128))
    monkeypatch.setattr(dry, "at", lambda ranks, tensor: {"memory": few if ranks == 8 else many})
    axes = plt.figure().add_subplot()
    dry.draw_bars(axes, 1)
    bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
    assert bars[::2] == [(0, 1), (1, 2), (3, 3), (6, 4), (10, 5)]
    assert bars[1::2] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]


def test_the_panels_of_13a_are_of_the_runs_that_they_name(out, monkeypatch):
    """What a rank holds is here a billion bytes for each rank that shares a matrix."""
    said = []
    asked = []

    def at(ranks, tensor=1):
        asked.append((ranks, tensor))
        return {"memory": dict.fromkeys(dry.PARTS, tensor * 1e9)}

    monkeypatch.setattr(dry, "picture", said.append)
    monkeypatch.setattr(dry, "at", at)
    dry.draw_memory({1: "FSDP alone", 8: "and tensor"})
    for wanted in itertools.product(dry.SIZES, (1, 8)):
        assert wanted in asked
    above, below = plt.gcf().axes
    assert above.get_title(loc="left") == "FSDP alone"
    assert below.get_title(loc="left") == "and tensor"
    assert above.patches[0].get_height() == 1 and below.patches[0].get_height() == 8
    assert "from 3.0 GB to 3000.0 MB" in said[0]


# ---- notebook 03d -------------------------------------------------------------------------------


def test_the_fit_finds_the_two_numbers_that_made_the_steps():
    exact = {size: critical_batch.model(size, 60, 120) for size in (15, 60, 240, 960)}
    assert critical_batch.fit(exact) == (pytest.approx(60), 120)
    assert critical_batch.fits_without_one(exact) == [120] * 4
    assert critical_batch.model(120, 60, 120) == 2 * 60  # at the critical batch size: twice the fewest steps


def test_the_best_rate_is_that_of_the_median_and_a_run_that_never_got_there_is_infinite():
    steps = {0.1: (10, 90, 80), 0.2: (None, None, 5), 0.4: (70, None, 60)}
    rows = []
    for rate, runs in steps.items():
        for seed, each in enumerate(runs):
            rows.append({"size": 30, "rate": rate, "steps": each, "seed": seed})
    assert critical_batch.best_rates(rows) == {30: (0.4, [60, 70, math.inf])}


def test_the_notebook_shows_the_critical_batch_of_the_stored_runs():
    """Its table and its numbers, and three seeds at each rate."""
    measured = critical_batch.newest()
    best = critical_batch.best_rates(measured["rows"])
    medians = critical_batch.medians(best)
    fewest, critical = critical_batch.fit(medians)
    tried = {}
    for row in measured["rows"]:
        tried.setdefault(row["size"], set()).add(row["rate"])
    for size, (rate, steps) in best.items():
        assert {rate / 2, rate * 2} <= tried[size], "the best rate lies between two others"
        assert len(steps) == 3

    path = notebooks.FOLDER / "03d_a_batch_for_each.ipynb"
    said = ""
    for cell in notebooks.read(path).cells:
        for text in notebooks.texts(cell):
            said += f"{text}\n"
    assert f"steps = {fewest:.0f} * (1 + {critical} / batch size)" in said
    for size, (rate, steps) in best.items():
        assert f"| {size} | {rate:g} | {', '.join(map(str, steps))} | {medians[size]} |" in said
    assert f"critical batch size (here {critical})" in notebooks.sources(notebooks.read(path), "markdown")
