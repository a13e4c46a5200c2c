"""The module beside the notebooks."""

import itertools
import os
import re
import signal
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import psutil
import pytest

import launcher
from processes import wait_for

sys.path.insert(0, str(launcher.ROOT / "notebooks"))
import show
from show import collectives, mixtures, rings


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


def test_a_diff_without_sentences_lists_its_places():
    with pytest.raises(ValueError, match=r"places differ, but there are 0 sentences. Places:\n  1: "):
        show.diff("02_data_parallel", "01_single_gpu")


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


def test_ranks_know_who_they_are_meet_and_report(out, capsys):
    path = script(
        out,
        "import json, os\n"
        "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "print('here')\n"
        "open(os.environ['STORE'], 'a').write(str(rank))\n"
        "if rank < 2: json.dump([rank, size], open(os.environ['RESULT'], 'w'))\n",
    )
    running = show.ranks(path, 3)
    assert [one.result for one in running] == [[0, 3], [1, 3], None]
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["rank 0 | here", "rank 1 | here", "rank 2 | here"]
    show.ranks(path, 2, quiet=True)
    assert capsys.readouterr().out == ""


def test_ranks_that_import_group_are_in_one_and_leave_it_with_a_result(out, capsys):
    path = script(
        out,
        "import torch, torch.distributed as dist\n"
        "from group import leave, rank, three_steps, world_size\n"
        "everyone = torch.tensor(rank + 1)\n"
        "dist.all_reduce(everyone)\n"
        "torch.manual_seed(0)\n"
        "images, labels = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])\n"
        "losses = three_steps(torch.nn.Linear(3, 2), images, labels)\n"
        "wrong = three_steps(torch.nn.Linear(5, 2), images, labels)\n"
        "leave([world_size, everyone.item(), losses, wrong, dist.is_initialized()])\n"
        "assert not dist.is_initialized()\n",
    )
    for one in show.ranks(path, 2, quiet=True):
        world_size, everyone, losses, wrong, inside = one.result
        assert one.code == 0 and (world_size, everyone, inside) == (2, 3, True)
        assert losses == sorted(losses, reverse=True) and len(set(losses)) == 3
        assert wrong.startswith("mat1 and mat2 shapes cannot be multiplied")


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


def test_a_variant_is_the_lesson_with_one_line_changed(out, capsys):
    path = show.variant("03_ddp_spawn", out, "no_epoch", {"sampler.set_epoch(epoch)": "pass"})
    text = (launcher.ROOT / "lessons/03_ddp_spawn.py").read_text()
    assert path.read_text() == text.replace("sampler.set_epoch(epoch)", "pass")
    removed, added = capsys.readouterr().out.splitlines()
    assert removed.startswith("-  ") and "set_epoch" in removed
    assert added.startswith("+  ") and "pass" in added
    for line in ("no such line", "rank"):
        with pytest.raises(ValueError, match="times, not once"):
            show.variant("03_ddp_spawn", out, "odd", {line: ""})


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


FILES = {"a": "one\ntwo\nthree\nfour\nfive\nsix\n", "b": "one\nTWO <b>\nthree\nfour\nfive\nsix\nseven\n"}


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(show.text, "LESSONS", tmp_path)


def test_a_diff_has_a_sentence_for_each_place(two_files):
    shown = show.Diff("a", "b", {"TWO": "Now it is `loud`.", "seven": "One more."})
    assert repr(shown) == "# Now it is `loud`.\n- two\n+ TWO <b>\n\n# One more.\n+ seven\n"
    assert shown._repr_markdown_() == (
        "`a.py` to `b.py`\n\n"
        "Now it is `loud`.\n\n```diff\n  one\n- two\n+ TWO <b>\n  three\n```\n\n"
        "One more.\n\n```diff\n  six\n+ seven\n```"
    )


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ({"TWO": "x"}, "2 places differ, but there are 1 sentences. Places:\n  1: two\n  2: seven"),
        ({"TWO": "x", "seven": "y", "eight": "z"}, "but there are 3"),
        ({"seven": "y", "TWO": "x"}, "place 1, which begins with 'two', does not change 'seven'"),
        ({"three": "x", "seven": "y"}, "place 1, which begins with 'two', does not change 'three'"),
    ],
)
def test_a_diff_whose_sentences_do_not_fit_is_an_error(two_files, sentences, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        show.Diff("a", "b", sentences)


def test_a_long_place_is_shown_in_parts(two_files, tmp_path):
    lines = [f"line {number}\n" for number in range(1, 31)]
    (tmp_path / "long.py").write_text("one\n" + "".join(lines))
    whole = show.Diff("a", "long", {"line 1": "All."})
    assert whole.too_long() == ["one"]
    parts = show.Diff("a", "long", {"line 1": "Ten.", "+ line 11": "Ten more.", "+ line 21": "The rest."})
    assert parts.too_long() == ["one"]  # two, three and so on are gone from it
    shown = parts._repr_markdown_()
    assert shown.count("```diff") == 3 and "Ten more.\n\n```diff\n+ line 11\n" in shown
    assert [line for _, lines in parts.parts for line in lines] == whole.parts[0][1], "nothing is lost"
    with pytest.raises(ValueError, match=re.escape("no line before the next place begins with '+ line 40'")):
        show.Diff("a", "long", {"line 1": "All.", "+ line 40": "None."})


def test_source_shows_the_function_as_it_is(monkeypatch):
    shown = []
    monkeypatch.setattr(show.text, "display", lambda what, metadata: shown.append(what))
    show.source("06b_preemption", "train")
    assert repr(shown[0]).startswith("@workload.let_the_first_speak\ndef train(rank")
    assert repr(shown[0]).rstrip().endswith("\n    snapshots.close()\n    return False")
    show.source(show.curve)
    assert "```python\ndef curve(out, stem):" in shown[1]._repr_markdown_()


def test_a_table_is_aligned_and_escaped():
    table = show.Table(["a", "long"], [("1 < 2", 3), ("x", "`y`")])
    assert repr(table) == "a      long\n1 < 2  3\nx      `y`"
    assert table._repr_markdown_() == "| a | long |\n| --- | --- |\n| 1 \\< 2 | 3 |\n| x | `y` |"


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


def test_a_picture_is_sharp_and_says_in_words_what_it_shows(out, monkeypatch):
    shown = []
    monkeypatch.setattr(show.pictures, "display", shown.append)
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


def test_a_slider_leaves_pictures_for_pages_that_do_not_run(out, monkeypatch):
    drawn, shown = [], []
    monkeypatch.setattr(show.pictures, "display", shown.append)
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


def swap_of_four():
    """A ring's first and last steps, made shorter: every process gets all sums from the others at once."""
    far = [[(rank, (rank + far) % 4) for rank in range(4)] for far in (1, 2, 3)]
    steps = [[(source, target, target, "add") for source, target in pairs] for pairs in far]
    last = [(source, target, source, "replace") for pairs in far for source, target in pairs]
    return steps + [last] * 3


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
        lambda: rings.draw(4, swap_of_four(), ["reduce-scatter", "all-gather"]),
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


def test_no_line_is_longer_than_a_page_shows(out, capsys):
    words = " ".join(["about twenty letters"] * 10)
    assert show.folded("short\n    indented\n") == "short\n    indented\n"
    lines = show.folded(f"{words}\nshort\n", " \\").splitlines()
    assert max(map(len, lines)) <= 88
    assert [line.endswith(" \\") for line in lines] == [True, True, False, False]
    show.launch("python -c pass", quiet=True).end()
    assert capsys.readouterr().out == ""
