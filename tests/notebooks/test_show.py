"""The module beside the notebooks."""

import itertools
import json
import os
import queue
import re
import runpy
import shutil
import signal
import subprocess
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import nbformat
import psutil
import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch.nn.functional import cross_entropy

import show
import workload
from show import s02_replicas as replicas
from show import s02a_collectives as collectives
from show import s03a_rings as rings
from show import s06_nodes as nodes
from show import s10a_mixtures as mixtures
from tests.helpers.probe_runs import run_probe
from tools import launcher, lessons, notebooks
from tools.bench import slow_links
from tools.testbed import hosts
from tools.testbed.processes import wait_for


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path))
    with plt.rc_context():
        yield show.start("test")
    plt.close("all")


@pytest.fixture
def shown(out, monkeypatch):
    shown = []
    monkeypatch.setattr(show.pictures, "display", shown.append)
    return shown


def script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_start_goes_to_the_root_and_empties_only_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    (tmp_path / "out/notebooks/other").mkdir(parents=True)
    (tmp_path / "out/notebooks/mine").mkdir()
    (tmp_path / "out/notebooks/mine/old").touch()
    with plt.rc_context():
        assert list(show.start("mine").iterdir()) == []
    assert (tmp_path / "out/notebooks/other").exists()
    assert launcher.ROOT.samefile(".")


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


def test_lines_come_while_the_command_runs(out, capsys):
    path = script(out, "import time; print('first'); time.sleep(60)")
    running = show.launch(f"python {path}")
    assert running.until("first", limit=20) == "first\n"
    assert running.code is None and len(running.tree()) == 1
    running.end()
    assert running.code == -signal.SIGKILL and running.tree() == []
    with pytest.raises(RuntimeError, match="before it wrote"):
        running.until("second", limit=1)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_hangs_is_ended_with_its_children(out, capsys):
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    text = f"import subprocess, sys, time\nprint(subprocess.Popen({child}).pid); time.sleep(60)"
    path = script(out, text)
    running = show.run(f"python {path}", limit=6, code=None)
    assert "still running after 6 seconds" in capsys.readouterr().out
    wait_for(lambda: not alive(int(running.text)), 5)


def test_what_has_ended_is_not_ended_again(monkeypatch):
    """The system gives its number to another process some day."""
    ended = show.Running([sys.executable, "-c", ""])
    ended.follow()
    with psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        monkeypatch.setattr(ended.process, "pid", other.pid)
        assert ended.tree() == []
        other.kill()


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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 1 | loss 0.5\n", "epoch 1 | loss 0.5\n"),
        (f"{launcher.ROOT}/lessons/x.py\n", "lessons/x.py\n"),
        ("W1121 07:10:49.123000 4711 torch/distributed/run.py:766] Sending\n", None),
        ("E1121 07:10:49.123000 4711 site-packages/torch/distributed/x.py:9] failed\n", "failed\n"),
        ("[rank0]:[W1121 07:54:09.154665901 reducer.cpp:1529] Warning: x (function y)\n", None),
        ("[rank1]: ValueError: no\n", "ValueError: no\n"),
        ('File "/a/b/lib/python3.11/site-packages/torch/x.py", line 3\n', 'File "torch/x.py", line 3\n'),
        (f"of binary: {sys.prefix}/bin/python3.11\n", "of binary: python\n"),
        ("exitcode: -9 (pid: 4711)\n", "exitcode: -9 (pid: (its number))\n"),
        ('File "/tmp/tmp1/x.py", line 3\n', 'File "(a temporary file)", line 3\n'),
        ("Process 4711: python\n", "Process (its number): python\n"),
        ("closed by [127.0.0.1]:4711\n", "closed by [this machine]:(a port)\n"),
    ],
    ids=itertools.count(),
)
def test_plain_drops_what_is_true_on_this_machine_only(line, expected):
    assert show.plain(line) == expected


FILES = {"a": "one\ntwo\nthree\nfour\nfive\nsix\n", "b": "one\nTWO < b\nthree\nfour\nfive\nsix\nseven\n"}


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(show.text, "LESSONS", tmp_path)


def test_a_diff_has_a_sentence_for_each_place(two_files):
    shown = show.Diff("a", "b", {"TWO": "Now it is `loud`.", "seven": "One more."})
    assert repr(shown) == "# Now it is `loud`.\n- two\n+ TWO < b\n\n# One more.\n+ seven\n"
    assert shown._repr_markdown_() == (
        "`a.py` to `b.py`\n\n"
        "Now it is `loud`.\n\n```diff\n  one\n- two\n+ TWO < b\n  three\n```\n\n"
        "One more.\n\n```diff\n  six\n+ seven\n```"
    )


def test_a_diff_shows_code_before_imports_and_imports_before_docstrings(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text('"""One."""\n\n\n\nimport os\n\n\n\nx = 1\n')
    (tmp_path / "b.py").write_text('"""Two."""\n\n\n\nimport sys\n\n\n\nx = 2\n')
    monkeypatch.setattr(show.text, "LESSONS", tmp_path)
    shown = show.Diff("a", "b", {"Two": "Docstring.", "sys": "Import.", "x = 2": "Code."})
    assert re.findall(r"# (\w+)", repr(shown)) == ["Code", "Import", "Docstring"]
    assert [sentence for sentence, _ in shown.parts] == ["Docstring.", "Import.", "Code."], "as on the pages"


def test_jupyterlab_gets_a_diff_in_colours_and_the_stored_notebook_does_not(two_files):
    shown = show.Diff("a", "b", {"TWO": "Now it is `loud`.", "seven": "One more."})
    page = shown._repr_html_()
    assert "<p>Now it is <code>loud</code>.</p>" in page and "+ TWO &lt; b</div>" in page
    behind = dict(re.findall(r'background: (.*?)">(\W)', page)[:3])
    assert list(behind.values()) == [" ", "-", "+"] and len(behind) == 3
    cell = nbformat.v4.new_code_cell(metadata={"tags": ["hide-input"]})
    data = {"text/html": page, "text/markdown": shown._repr_markdown_()}
    cell.outputs = [nbformat.v4.new_output("display_data", data, metadata={"rungs": "diff"})]
    kept = notebooks.tidy(nbformat.v4.new_notebook(cells=[cell]), 1).cells[0]
    assert list(kept.outputs[0].data) == ["text/markdown"] and kept.metadata.jupyter.source_hidden


def test_writefile_prints_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(show, "get_ipython", InteractiveShell.instance)
    show.write_files_silently()
    InteractiveShell.instance().run_cell(f"%%writefile {tmp_path}/x.py\nx = 1\n")
    assert (tmp_path / "x.py").read_text() == "x = 1\n" and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ({}, "2 places differ, but there are 0 sentences. Places:\n  1: "),
        ({"TWO": "x"}, "2 places differ, but there are 1 sentences. Places:\n  1: two\n  2: seven"),
        ({"seven": "y", "TWO": "x"}, "place 1, which begins with 'two', does not change 'seven'"),
    ],
)
def test_a_diff_whose_sentences_do_not_fit_is_an_error(two_files, sentences, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        show.Diff("a", "b", sentences)


def test_a_timeline_has_a_bar_for_each_span_and_names_only_kinds_that_occur(out):
    axes = plt.figure().add_subplot()
    kinds = {"compute": show.BLUE, "wait": show.ORANGE, "other": show.GREEN}
    show.timeline(axes, {"rank 0": [(0, 1, "compute"), (1, 3, "wait")], "rank 1": [(0, 3, "compute")]}, kinds)
    bars = [(bar.get_x(), bar.get_width(), round(bar.get_y() + 0.31)) for bar in axes.patches]
    assert bars == [(0, 1, 0), (1, 2, 0), (0, 3, -1)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["compute", "wait"]


def test_curves_lie_on_one_another_and_can_all_be_seen(out):
    axes = plt.figure().add_subplot()
    rows = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    show.curves(axes, {"one": rows, "two": rows, "three": rows})
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3
    assert list(axes.lines[0].get_ydata()) == [2, 1]


def test_a_picture_is_sharp_and_says_in_words_what_it_shows(shown):
    axes = plt.figure(figsize=(4, 3)).add_subplot()
    axes.set_xlabel("steps")
    show.picture("The loss falls.")
    _, metadata = shown[0]._repr_mimebundle_()
    assert metadata["image/png"] == {"width": 440, "alt": "The loss falls."}
    width = int.from_bytes(shown[0].data[16:20])
    assert width == 880, "two dots for one"
    assert plt.get_fignums() == [], "else Jupyter would show it again"


@pytest.mark.parametrize(
    ("size", "label", "message"),
    [
        ((8, 3), {"xlabel": "steps"}, r"on a phone, '.+' is 6\.\d dots high"),
        ((4, 3), {"ylabel": "a label that is longer than its picture is high"}, "something is cut off at"),
    ],
)
def test_a_picture_that_cannot_be_read_is_refused(out, size, label, message):
    """Its letters are too small for a phone, or a label is cut off at an edge."""
    plt.figure(figsize=size).add_subplot().set(**label)
    with pytest.raises(ValueError, match=message):
        show.picture("The loss falls.")


def test_a_slider_leaves_pictures_for_pages_that_do_not_run(shown, monkeypatch):
    drawn = []
    monkeypatch.setattr(show.pictures, "picture", drawn.append)
    show.slider(lambda value: f"for {value}", "N", [2, 3, 4], [2, 3])
    assert drawn == ["for 2", "for 3"]
    shown[0].children[0].value = 4
    assert drawn == ["for 2", "for 3", "for 4"]


def light(colour):
    channels = matplotlib.colors.to_rgb(colour)
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_pictures_can_be_read_on_white_and_on_dark_pages(out):
    """They have no ground of their own: ink and ranks' colours stand out from both, and are not the same."""
    for name in ("figure.facecolor", "savefig.facecolor", "axes.facecolor"):
        assert matplotlib.colors.to_rgba(plt.rcParams[name])[3] == 0
    for page in ("#ffffff", "#0d1117"):  # GitHub's
        assert contrast(show.INK, page) > 4
        assert min(contrast(colour, page) for colour in show.RANKS) > 1.9


WAITS = {"barrier": {0: [0.0, 0.5, 0.5, 0.5], 2: [0.5, 0.5, 0.0, 0.5]}}
SUMS = [[1111, 2222, 3333, 4444], [10, 22, 333, 40], [100, 200, 300, 400], [1110, 2200, 3033, 4004]]
EVENTS = [("forward", 0, 0), ("forward", 1, 0), ("backward", 0, 0), ("backward", 1, 1)]


def pipeline_log():
    names, second = ("what", "batch", "version"), [EVENTS[0], EVENTS[2], ("forward", 1, 1), EVENTS[3]]
    logs = [[dict(zip(names, event, strict=True)) for event in log] for log in (EVENTS, second)]
    logs[0][3]["of_forward"] = 0
    return logs


@pytest.mark.parametrize(
    "draw",
    [
        lambda: collectives.draw_held(SUMS, SUMS),
        lambda: collectives.draw_time([0.5, 0.5, 0.0, 0.5], 2),
        lambda: collectives.draw_waits(WAITS),
        lambda: rings.draw(2, SWAP, ["reduce-scatter", "all-gather"]),
        lambda: rings.draw_wires({"one": [[0.0, 3.0], [1.5, 0.0]], "two": [[0.0, 0.5], [0.1, 0.0]]}),
        lambda: mixtures.draw_order(pipeline_log()),
    ],
    ids=["held", "time", "waits", "ring", "wires", "schedule"],
)
def test_letters_in_tiles_can_be_read_on_any_page(out, draw):
    """What is filled is opaque, so that no page shines through, and what is written on it stands out."""
    draw()
    found = 0
    pairs = [(text, patch) for axes in plt.gcf().axes for text in axes.texts for patch in axes.patches]
    for text, patch in pairs:
        (x, y), box, face = text.get_position(), patch.get_bbox(), patch.get_facecolor()
        is_inside = box.xmin < x < box.xmax and box.ymin < y < box.ymax
        if is_inside and text.get_text() and face[3] > 0:
            found += 1
            assert face[3] == 1 and contrast(text.get_color(), face[:3]) > 4.5, text.get_text()
    assert found >= 3


# ---- the collectives


@pytest.fixture
def ranks():
    ranks = collectives.Ranks(2, limit=3)
    yield ranks
    ranks.close()


@pytest.mark.long
def test_after_an_error_and_a_hang_they_are_started_anew_and_in_the_end_they_are_gone(ranks):
    with pytest.raises(RuntimeError, match="rank 0: NameError: name 'nobody' is not defined\nrank 1: Name"):
        ranks.run("nobody")
    assert ranks.running == []
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
    monkeypatch.syspath_prepend(launcher.ROOT / "notebooks/show/rank_scripts")
    runpy.run_path(str(launcher.ROOT / "notebooks/show/s02a_rank.py"), run_name="rank")
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


# ---- nodes


class Launcher:
    """Prints nothing, and notes that it was ended."""

    def __init__(self):
        self.news, self.ended = queue.Queue(), False

    def end(self):
        self.ended = True


def test_it_ends_all_when_nothing_more_happens():
    watch = nodes.Watch()
    watch.launchers = {0: Launcher(), 1: Launcher()}
    with pytest.raises(AssertionError, match="nothing more happens"):
        watch.until(lambda: False, limit=0.1)
    assert all(launcher.ended for launcher in watch.launchers.values())


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (1, "5", ["", ""]),
        (2, None, ["0", "1"]),
        (2, "2,3", ["2", "3"]),
    ],
)
def test_launchers_get_gpus_that_the_reader_may_see(monkeypatch, count, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nodes.own_gpus(count) == expected


# ---- replicas and rings


SERVER = [[(1, 0, 0, "add"), (1, 0, 1, "add")], [(0, 1, 0, "replace"), (0, 1, 1, "replace")]]
SWAP = [[(0, 1, 0, "add"), (1, 0, 1, "add")], [(1, 0, 0, "replace"), (0, 1, 1, "replace")]]


def test_play_says_who_has_been_added_up_and_finds_what_is_wrong():
    start, half, end = rings.play(2, SWAP)
    assert start == [[{0}, {0}], [{1}, {1}]]
    assert half == [[{0}, {0, 1}], [{0, 1}, {1}]]
    assert end == [[{0, 1}, {0, 1}]] * 2
    with pytest.raises(AssertionError, match="counted twice"):
        rings.play(2, [SWAP[0], SWAP[0]])
    with pytest.raises(AssertionError, match="not everyone has the sum"):
        rings.play(2, SWAP[:1])


def test_a_panel_has_a_frame_around_what_has_arrived_and_a_sign_for_the_sum():
    rings.draw(2, SERVER, ["collect", "hand out"])
    start, _, half, end = plt.gcf().axes
    assert [text.get_text() for text in half.texts] == ["Σ", "Σ", "1", "1"]
    assert [text.get_text() for text in end.texts] == ["Σ"] * 4
    framed = [[patch.get_linewidth() > 0 for patch in axes.patches[:4]] for axes in (start, half)]
    assert framed == [[False] * 4, [True, True, False, False]]
    assert [axes.get_title() for axes in (half, end)] == ["collect 1", "hand out 1"]
    plt.close("all")


def test_the_gradients_are_those_of_the_whole_batch_however_uneven_the_parts():
    digits = workload.draw_digits(5, seed=1)
    model = workload.ConvNet((1, 28, 28))

    def gradients(forward):
        model.zero_grad()
        cross_entropy(forward(digits.images), digits.labels).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    parallel = replicas.DataParallel(model, [torch.device("cpu")] * 4)
    torch.testing.assert_close(gradients(parallel), gradients(model), rtol=1e-4, atol=1e-7)


def test_a_step_taken_apart_is_a_step():
    digits, cpu = workload.draw_digits(8, seed=1), torch.device("cpu")
    model, alone = workload.ConvNet((1, 28, 28)), workload.ConvNet((1, 28, 28))
    alone.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = digits[:]
    bars, copies, threads = replicas.take_apart(replicas, [cpu, cpu], model, optimizer, images, labels)
    cross_entropy(alone(images), labels).backward()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    for own, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    assert [part for _, _, part in bars["main thread"]] == list(replicas.COLOURS)
    assert [part for name in ("replica 0", "replica 1") for _, _, part in bars[name]] == ["forward"] * 2
    assert sorted(threads) == [0, 1] and len(copies) == 2
    assert not model._forward_hooks and not model._forward_pre_hooks


# ---- somebody else's weights

(NOTEBOOK,) = (row for row in lessons.NOTEBOOKS if row.stem == "09a_fine_tuning")
NEEDED = NOTEBOOK.needs.partition(": ")[2]
RANK_SCRIPTS = launcher.ROOT / "notebooks/show/rank_scripts"


@pytest.mark.skipif(NOTEBOOK.is_missing(), reason=f"needs {NEEDED.split()[-1]}: make tools installs it")
@pytest.mark.parametrize("wrong", ["missing", "unexpected"])
def test_a_file_whose_names_do_not_fit_is_an_error(tmp_path, monkeypatch, wrong):
    monkeypatch.syspath_prepend(RANK_SCRIPTS)
    import s09a_fine_tuning as fine_tuning
    from safetensors.torch import save_file

    model = fine_tuning.Classifier(answers=2)
    weights = {name.replace("body", "encoder"): value for name, value in model.state_dict().items()}
    save_file(weights, tmp_path / "right.safetensors")
    model.load_state_dict(fine_tuning.read(tmp_path / "right.safetensors"))
    if wrong == "missing":
        del weights["encoder.5.weight"]
    else:
        weights["encoder.5.bias"] = torch.zeros(32)
    save_file(weights, tmp_path / "x.safetensors")
    with pytest.raises(RuntimeError, match=f"(?i){wrong} key"):
        model.load_state_dict(fine_tuning.read(tmp_path / "x.safetensors"))


def test_without_safetensors_it_says_in_one_line_how_to_install_it():
    words = [sys.executable, "-c", "import sys; sys.modules['safetensors'] = None; import s09a_fine_tuning"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(RANK_SCRIPTS), *sys.path])}
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stderr) == (2, f"error: this notebook needs safetensors: {NEEDED}\n")
    assert (launcher.ROOT / NEEDED.split()[-1]).exists()


# ---- fewer bytes


@pytest.mark.long
def test_what_should_be_the_same_is_the_same(tmp_path):
    """Weights averaged after each step are DDP's, since SGD is linear in the gradients; and DiLoCo with an
    outer rate of 1 and no momentum is local SGD."""
    ways = ["ddp", "local_sgd 1", "local_sgd 5", "diloco 5 1 1e-9"]
    runs = [{"way": way, "epochs": 1, "look_every": 5} for way in ways]
    script = shutil.copy(slow_links.SCRIPT, tmp_path)
    asked = {"RUNS": json.dumps(runs), "SIZES": "[2400, 100]"}
    found = show.ranks(script, 2, limit=100, environment=asked, quiet=True)[0].result
    ddp, each_step, local, diloco = ([row["loss"] for row in rows] for rows in found)
    assert each_step == pytest.approx(ddp, rel=1e-5) and diloco == pytest.approx(local, rel=1e-5)
    assert local != pytest.approx(ddp, rel=3e-5)


def test_the_notebook_shows_what_the_newest_file_holds():
    result = slow_links.newest()
    cells = notebooks.read(notebooks.FOLDER / "07a_fewer_bytes.ipynb").cells
    said = [text for cell in cells for text in notebooks.texts(cell)]
    shown = show.Table(slow_links.head(result), slow_links.table(result))
    assert shown._repr_markdown_() in said, "make notebooks ARGUMENTS=07a_fewer_bytes"


@pytest.mark.night
def test_a_slow_link_is_as_slow_as_it_says(tmp_path):
    """20 steps of DDP send 20 x 129 KB from each of two hosts; local SGD sends that once."""
    if hosts.why_not():
        pytest.skip(hosts.NEEDED)
    runs = [{"way": way, "epochs": 1, "look_every": 20} for way in ("ddp", "local_sgd")]
    ddp, local = (rows[0] for rows in slow_links.on_two_hosts(tmp_path, "10mbit", runs, (2400, 100)))
    assert 20 * 129_128 < ddp["sent"] < 1.05 * 20 * 129_128 and 19 < ddp["sent"] / local["sent"] < 21
    assert ddp["seconds"] > 0.9 * 8 * ddp["sent"] / 10e6
