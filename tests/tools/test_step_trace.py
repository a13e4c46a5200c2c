"""What slow.md says of the stored trace is what the trace has."""

import contextlib
import io
import json
import re

import pytest

from tools import lessons
from tools.makers import step_trace
from tools.makers.step_trace import MAIN

PAGE = (lessons.ROOT / "lessons/pages/slow.md").read_text()
SECTION = PAGE.split("\n## Reading a trace\n")[1].split("\n## ")[0]
PROSE = re.sub(r"(?s)```.*?```|<!--.*?-->", "", SECTION)


def test_the_numbers_of_the_page_are_those_of_the_file():
    found = step_trace.parts()
    about = json.loads(step_trace.TRACE.read_text())["otherData"]
    first, second, third = found["all-reduces"]
    begin, end = found["gap"]
    says = (
        f"from {found['backward'][0]:.0f} to {found['backward'][1]:.0f} ms",
        f"forward until {found['forward'][1]:.0f} ms",
        f"backward until {found['backward'][1]:.0f} ms",
        f"until the update at {found['update'][0]:.0f} ms",
        f"The first starts at {first[0]:.0f} ms, during backward",
        f"the main thread waits {end - begin:.0f} ms for the last bucket",
        f"hands it over at {found['handed over'][2]:.0f} ms",
        f"its all-reduce starts at {third[0]:.0f} ms, when bucket 1 is done",
        f"ends at {third[1]:.0f} ms, as the last of the three",
        f"only {about['bytes of the buckets'][2] / 1000:.0f} kB",
        f"bucket 2 ({about['bytes of the buckets'][1] / 1000:.0f} kB)",
        f"a link of {about['link'].removesuffix('mbit')} Mbit/s",
    )
    for words in says:
        assert words in PROSE
    for option in ("--width 64", "--batch-size 240", "bucket_cap_mb=0.25"):
        assert option in about["job"] and option in PROSE
    # What the prose says without a number.
    assert [thread for _, _, thread in found["all-reduces"]] == [MAIN + 1, MAIN + 2, MAIN + 1]
    assert first[1] <= third[0] < second[1] < third[1] <= end
    assert found["backward"][0] < first[0] < found["handed over"][2] < found["backward"][1]
    late = []
    for handed, (begin, _, _) in zip(found["handed over"], found["all-reduces"], strict=True):
        late.append(begin - handed)
    assert late.index(max(late)) == 2
    assert max(late) > 10 * max(late[:2])


def test_the_lines_of_the_page_print_what_it_shows(monkeypatch):
    monkeypatch.chdir(lessons.ROOT)
    code, shown = re.findall(r"(?s)```(?:python|text)\n(.*?)```", SECTION)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == shown
    # The all-reduces have no pause between them, so their time is that from the first begin to the last end.
    found = step_trace.parts()
    begin = found["all-reduces"][0][0]
    end = max(end for _, end, _ in found["all-reduces"])
    share = (found["backward"][1] - begin) / (end - begin)
    assert float(shown.split("%")[0]) / 100 == pytest.approx(share, abs=0.01)


def test_the_file_is_small_and_names_are_those_of_the_page():
    text = step_trace.TRACE.read_text()
    stored = json.loads(text)
    assert len(text) < 60_000
    names = set()
    for event in stored["traceEvents"]:
        names.add(event["name"])
        if event["ph"] == "X":
            assert "args" not in event
    for name in (
        "autograd::engine::evaluate_function",
        "gloo:all_reduce",
        "c10d::allreduce_",
        "Optimizer.step",
    ):
        assert f"`{name}`" in PROSE
        assert any(found.startswith(name) for found in names)
    assert stored["otherData"]["commit"]
    assert not stored["otherData"]["commit"].endswith("+")
