"""The ring, the schedules, the memory, the planner and its search show on the site what Python says."""

import ast
import contextlib
import io
import itertools
import json
import random
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from planner import __main__ as command
from planner import formulas, plans, report, search
from tests.helpers.lines import column
from tests.tools.test_site import every, one, opened, small_site
from tools.lessons import ROOT
from tools.makers.site import controls, gpus, live, models
from tools.makers.site.widgets import memory, planner, planner_search, ring, schedules

LIVE = {"memory": memory, "planner": planner, "planner_search": planner_search, "schedules": schedules}


def inputs_of(widget, **changes):
    return live.begin(widget) | changes


def answer(widget, **changes):
    """What Python says of what a widget begins with, or of these changes, as a page gets it."""
    return as_json(widget.answer(**inputs_of(widget, **changes)))


def as_json(found):
    return json.loads(json.dumps(found))


def printed(words):
    """What the planner's command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        command.main(words.split())
    return output.getvalue()


def command_of(table):
    """The words of the command that a table has as its caption."""
    return table["caption"].removeprefix("python lessons/planner ")


# ---- what Python says ----


def test_bytes_and_steps_are_those_of_the_formulas():
    """Steps: the seconds of no bytes, a second a message. Bytes: those of a second a byte, no latency."""
    for size, way in itertools.product(ring.PROCESSES, ring.WAYS):
        if not ring.is_there(way, size):
            continue
        steps, chunks = ring.steps_of(way, size, size)
        longest = 0
        for _, moves in steps:
            wires = Counter()
            for source, target, *_ in moves:
                wires[source, target] += 1
            longest += max(wires.values()) / chunks
        if way == "server":  # ours waits with its answer, and the formula's does not
            assert longest == 2 * formulas.all_reduce_seconds(1, size, 1, 0, way)
            continue
        node = {"ranks_per_node": max(1, size // 2)}
        assert len(steps) == formulas.all_reduce_seconds(0, size, 1, 1, way, **node), (way, size)
        assert longest == pytest.approx(formulas.all_reduce_seconds(1, size, 1, 0, way, **node))
    (cells,) = filter(lambda row: row[0] == "ring", ring.table(8))
    assert cells[1:4] == ["14", "3.50 x", "28.00 x"] and cells[-1] == "525 ms"


def test_orders_and_times_are_those_of_the_solution_of_exercise_10():
    solution = runpy.run_path(str(ROOT / "solutions/10_pipeline.py"))
    functions = {"gpipe": solution["gpipe"], "1f1b": solution["one_forward_one_backward"]}
    drawn = random.Random(1)
    for name, stages, count in itertools.product(functions, (2, 3, 5, 8), (1, 4, 11)):
        lines = []
        forward = []
        backward = []
        for stage in range(stages):
            lines.append(functions[name](stage, stages, count))
            forward.append(drawn.uniform(0.5, 3))
            backward.append(drawn.uniform(0.5, 3))

        orders = schedules.orders(name, stages, count)
        for ours, line in zip(orders, lines, strict=True):
            assert [action[1:] for action in ours] == line, (name, stages, count)
        assert schedules.orders("naive", stages, count) == schedules.orders("gpipe", stages, 1)

        events = schedules.when(orders, {"forward": forward, "backward": backward})
        expected = solution["timeline"](lines, forward, backward)
        for row, begins_and_ends in zip(events, expected, strict=True):
            assert [(event["begin"], event["end"]) for event in row] == begins_and_ends


def test_processes_are_idle_as_the_formula_says_and_hold_what_the_notebook_says():
    for processes, count in itertools.product(schedules.PROCESSES, schedules.MICROBATCHES):
        fewer_and_fewer = [min(count, most) for most in range(processes, 0, -1)]
        held = {"1f1b": fewer_and_fewer, "gpipe": [count] * processes}
        for name in schedules.SCHEDULES:
            values = schedules.values_of(name, inputs_of(schedules, processes=processes, microbatches=count))
            theory = schedules.timeline.idle_in_theory(values)
            if name != schedules.ZERO:
                assert schedules.timeline.idle(values) == pytest.approx(theory), (name, processes, count)
                assert values["held"] == held.get(name, values["held"])
            elif count >= processes:
                assert schedules.timeline.idle(values) < theory, "the weights' part fills the bubble"
                assert values["held"] == [processes] * processes, "until the weights' part has ended"


@pytest.mark.long
def test_torch_has_the_orders_that_are_stored():
    """In a process of its own: it makes groups of a backend that computes nothing."""
    same = "assert orders.orders() == json.loads(orders.OUT.read_text())"
    words = [sys.executable, "-c", f"import json; from tools.makers.site import orders; {same}"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"python -m tools.makers.site.orders writes them anew: {result.stderr}"


def test_a_plan_is_the_one_that_the_command_prints():
    inputs = inputs_of(
        planner, model="Llama 3 70B", gpus=2048, tensor_parallel=8, pipeline=4, stage=0, batch_tokens=2**23
    )
    found = planner.answer(**inputs)
    words = "--model llama3-70b --price-per-hour 3.99 --gpus 2048 --tensor-parallel 8 --pipeline 4 --stage 0"
    words += " --batch-tokens 8388608 --bandwidth-network 1.25e10"
    assert command_of(found["tables"][0]) == words
    said = " ".join(printed(words).split())
    assert json.loads(printed(f"{words} --json")) == as_json(plans.plan(models.job_of(inputs)))
    for cells in found["tables"][0]["rows"]:
        assert " ".join(filter(None, cells)) in said, cells
    assert found["said"].startswith("Yes, it fits") and found["memory"][-1]["to"] < found["limit"]["at"] < 1


def test_a_sweep_is_the_one_that_the_command_prints():
    said = report.table(*plans.sweep(models.job_of(inputs_of(planner, gpus=2**14))), Path("a picture"))
    found = answer(planner)
    _, *rows, end, _ = filter(None, said.splitlines())
    fits = set()
    shares = []
    for ours, row in zip(found["tables"][1]["rows"], rows, strict=True):
        assert " ".join(filter(None, ours)) == " ".join(row.split())
        assert (ours[-3:] == ["", "", ""]) == (ours[2] == "no")
        fits.add(ours[2])
        shares.append(ours[4])
    assert fits == {"yes", "no"}
    assert found["end"] == planner.in_words(f"{end}.").replace("No further", "The sweep stops here")
    assert column(found["curve"], "share") == shares


def test_what_cannot_run_is_said_as_the_planner_says_it():
    found = answer(planner, gpus=2**14, batch_tokens=2**24)
    assert found["said"].startswith("No plan: a step of 16,777,216 tokens has 8,192 texts")
    assert "tokens per step must be at least 33,554,432 (" in found["said"]
    assert controls.with_commas("12345678 of 1234567.5, 0.123456 and 1,234,567") == (
        "12,345,678 of 1234567.5, 0.123456 and 1,234,567"
    )
    assert not found["shares"] and len(found["curve"]) == 14
    assert "takes 8 GPUs" in answer(memory, gpus=1, tensor_parallel=8)["said"]
    found = answer(planner_search, gpus=64)
    assert found["said"].startswith("No way to shard 405.9 billion parameters over 64 GPUs fits")
    assert found["tables"] == found["ways"] == []


def test_memory_is_that_of_the_planner():
    found = answer(memory, model="GPT-3, 175 billion", gpus=512, tensor_parallel=8)
    words = "--params 175000000000 --gpus 512 --tensor-parallel 8 --stage 2 --json"
    plan = json.loads(printed(words))
    row = found["tables"][0]["rows"][2]
    assert row[1:5] == [memory.gigabytes(plan["memory_bytes"][part]) for part in memory.PARTS]
    assert row[-3:] == ["no", "fits", "fits"] and plan["fits"]
    assert "24 GB GPU: does not fit, at any stage; 80 GB GPU: fits with ZeRO stage 2" in found["said"]


def test_what_would_fit_is_said_of_a_plan_that_does_not():
    no = answer(planner, model="a GPT of 30 billion", gpus=64, stage=0)
    begin = "No, it does not fit: each GPU would need 505.0 GB and has 80 GB. What would fit: "
    assert no["said"].startswith(begin) and no["shares"] == []
    other = answer(planner, model="a GPT of 30 billion", gpus=64, stage=3)
    assert f"ZeRO stage 3 (FSDP) ({other['needs']})" in no["said"] and other["said"].startswith("Yes")


def test_what_does_not_fit_takes_no_time_and_costs_nothing():
    refused = 0
    for preset in live.answered(planner):
        found = preset["answer"]
        *_, swept = found["tables"]
        assert swept["head"][2] == "fits" and list(swept["head"][5:]) == ["time", "dollars", "interruptions"]
        for row in swept["rows"]:
            assert all(row[5:]) if row[2] == "yes" else not any(row[5:]), row
        if found["said"].startswith("No"):
            refused += 1
            assert "$" not in found["said"] and "dollars" not in json.dumps(found["tables"][0])
    assert refused > 0


def test_interruptions_are_expected_only_where_one_is_likely():
    one = answer(planner)
    assert one["said"].endswith("costs $20,855.")
    cells = dict(row[:2] for row in one["tables"][0]["rows"])
    assert 0 < float(cells["unplanned interruptions to expect"]) < 0.5
    many = answer(planner, **dict(planner.PRESETS["Llama 3 405B on 16,384 GPUs"]))
    assert many["said"].endswith(" Expect 363 unplanned interruptions.")


def test_the_planner_begins_with_a_curve_that_falls():
    shares = [float(dot["share"].rstrip("%")) for dot in answer(planner)["curve"]]
    assert shares[0] == 100 and shares == sorted(shares, reverse=True) and shares[-1] < 60


def test_a_gpu_is_what_the_sources_and_the_lessons_say():
    h100, standard = gpus.with_gpu({"gpu": "H100"}), models.STANDARD
    lesson = (ROOT / "lessons/parts/language_model.py").read_text()  # to import it is to import torch
    peaks = ast.literal_eval(re.search(r"(?s)^PEAKS = (\{.*?\})", lesson, re.M)[1])
    for name in ("memory", "peak", "bandwidth_node"):
        assert h100[name] == standard[name.replace("_", "-")], "the planner's command plans for H100s"
    for name, gpu in gpus.GPUS.items():
        assert name == "B200" or peaks[name] == pytest.approx(gpu.peak, rel=0.01)
        assert len(gpu.sources) == 4
        for words, address in gpu.sources:
            assert words and address
        assert f"| {name} | {gpu.memory:g} GB ([" in gpus.table()
    chosen = {"gpu": "A100", "memory": 40e9, "price_per_hour": None}
    assert gpus.with_gpu(chosen) == gpus.with_gpu({"gpu": "A100"}) | {"memory": 40e9}

    of_an_h100 = plans.plan(models.job_of(inputs_of(planner, gpu="H100")))
    of_an_a100 = plans.plan(models.job_of(inputs_of(planner, gpu="A100")))
    third = "an A100 has 80 GB as well, but a third of the FLOP/s"
    assert of_an_a100["days"] > 2.5 * of_an_h100["days"], third


def values_of_controls(widget):
    """For each control of a widget, the values that it can be set to."""
    found = {}
    for control in widget.CONTROLS:
        found[control["name"]] = [value for value, _ in control["values"]]
    return found


def test_examples_are_what_the_controls_can_be_set_to():
    for name, widget in LIVE.items():
        values = values_of_controls(widget)
        examples = live.presets(widget)
        assert examples[0]["inputs"] == live.begin(widget), name
        for example in examples:
            for key, value in example["inputs"].items():
                assert value in values[key], example
            answer = widget.answer(**example["inputs"])
            assert answer["tables"] and not answer["said"].startswith("No plan"), example


@pytest.mark.long
def test_the_best_ways_are_those_that_the_command_above_them_prints():
    drawn = random.Random(1)
    values = values_of_controls(planner_search)
    compared = 0
    for _ in range(20):
        chosen = {}
        for name in values:
            chosen[name] = drawn.choice(values[name])
        found = answer(planner_search, **chosen)
        if found["tables"]:
            compared += 1
            compare_search(found)
    assert compared >= 10


def compare_search(found):
    """The table and the bars of an answer, and what the command in the table's caption prints."""
    [shown] = found["tables"]
    words = command_of(shown)
    best = json.loads(printed(f"{words} --json"))
    assert best == as_json(search.search(planner_search.job_of(found["inputs"])))

    _, _, _, *rows = printed(words).splitlines()
    for cells, row in zip(shown["rows"], rows, strict=True):
        assert " ".join(cells) == " ".join(row.split())

    longest = sum(best[-1]["step_seconds"].values())
    for way, plan, cells in zip(found["ways"], best, shown["rows"], strict=True):
        shares = {}
        for part in way["parts"]:
            shares[part["part"]] = part["to"] - part["from"]
        expected = {}
        for part, seconds in plan["step_seconds"].items():
            if seconds:
                expected[part] = seconds / longest
        assert shares == pytest.approx(expected)
        assert way["words"] == f"step time {cells[9]}, {cells[8]} GB, bound by {cells[-1]}"


def test_the_fastest_way_changes_as_the_page_of_the_search_says():
    def fastest(name, value):
        inputs = inputs_of(planner_search, **{name: value})
        return search.search(planner_search.job_of(inputs))[0]

    values = values_of_controls(planner_search)
    data_parallel = []
    pipeline = []
    for bandwidth in reversed(values["bandwidth_network"]):
        plan = fastest("bandwidth_network", bandwidth)
        data_parallel.append(plan["data_parallel"])
        pipeline.append(plan["job"]["pipeline"])
    assert data_parallel == [2048, 128, 32, 32, 32]
    assert pipeline == [1, 8, 16, 16, 32]

    context_parallel = []
    for length in values["seq"]:
        context_parallel.append(fastest("seq", length)["job"]["context_parallel"])
    assert context_parallel == [1, 2, 4, 4, 16, 32, 64]


# ---- the pages ----


@pytest.fixture
def page(request, once):
    yield from opened(request, small_site(once))


def is_there(page, name):
    """Open a page whose answers come from Python, and wait until Python is there."""
    page.open(f"widgets/{name}.html")
    page.ask(f"{one('#widget select')}.focus()")  # on a phone, the drawing is below the fold
    page.until(f"{one('.loading')}.textContent.startsWith('Python runs in your browser')", "Python", 300)


def answered(page, inputs):
    said = f"{one('#widget')}.dataset.inputs == JSON.stringify({json.dumps(inputs)})"
    page.until(said, f"an answer to {inputs}")


def type_in(page, name, words):
    page.ask(f"{one(f'#widget [name={name}]')}.select()")
    page.press("Delete")
    if words:
        page.call("Input.insertText", text=words)


def choose(page, name, index):
    """Set a control by keyboard."""
    box = one(f"#widget [name={name}]")
    if page.ask(f"{box}.type == 'number'"):
        type_in(page, name, page.ask(f"{box}.list.options[{index}].value"))
        return
    page.ask(f"{box}.focus()")
    arrow = "ArrowRight" if page.ask(f"{box}.type == 'range'") else "ArrowDown"
    for key in ["Home"] + [arrow] * index:
        page.press(key)


SHOWN = """(() => {
    const number = (node, name) => Number(node.getAttribute(name));
    const frame = (node) => node.closest("svg").dataset.frame?.split(" ").map(Number);
    const parts = (key) => [...document.querySelectorAll(`#widget [data-${key}]`)].map((node) => {
        const [left, across] = frame(node) || [0, 1];
        const from = ((node.tagName == "line" ? number(node, "x1") : number(node, "x")) - left) / across;
        return [node.getAttribute(`data-${key}`), from, number(node, "width") / across];
    });
    const dots = [...document.querySelectorAll("#widget [data-dot]")].map((node) => {
        const [left, across, top, high] = frame(node);
        const [x, y] = [number(node, "cx"), number(node, "cy")];
        return [node.dataset.dot, (x - left) / across, 1 - (y - top) / high];
    });
    const words = (chosen) =>
        [...document.querySelectorAll(`#widget ${chosen}`)].map((node) => node.textContent);
    const table = (node) => [...node.querySelectorAll("tbody tr")].map((row) =>
        [...row.children].map((cell) => cell.textContent));
    return {
        said: words("[role=status]:not(.loading)"),
        tables: [...document.querySelectorAll("#widget table")].map(table),
        part: parts("part"), line: parts("line"), event: parts("event"), dots,
        memory: parts("memory"), share: parts("share"), limit: parts("limit"),
        held: [...document.querySelectorAll("#widget [data-held]")].map((node) =>
            [number(node, "width") / 90]),
        words: words("[data-words]"),
    };
})()"""


def bars(rows, named="{index} {part}"):
    """The bars of some rows, as SHOWN has them: a name, where it begins, how long it is."""
    found = []
    for index, row in enumerate(rows):
        for part in row:
            name = named.format(index=index, **part)
            found.append((name, part["from"], part["to"] - part["from"]))
    return found


def marks(lines):
    return [(line["words"], line["at"], 0) for line in lines]


# What the page of each widget draws, of the answer that Python gives.


def drawn_memory(found):
    return {
        "part": bars(column(found["bars"], "parts")),
        "line": marks(found["lines"]),
        "words": column(found["bars"], "words"),
    }


def drawn_schedules(found):
    return {
        "event": bars(found["rows"], "{index} {kind} {microbatch} {second:d}"),
        "held": [(one["share"],) for one in found["held"]],
        "words": column(found["held"], "words"),
    }


def drawn_search(found):
    words = []
    for at, way in enumerate(found["ways"], 1):
        words.append(f"{at}. {way['name']}: {way['words']}")
    return {"part": bars(column(found["ways"], "parts")), "words": words}


def drawn_planner(found):
    limits = []
    if found["memory"]:
        limits.append(found["limit"])
    dots = []
    if len(found["curve"]) > 1:
        for dot in found["curve"]:
            dots.append((dot["words"], dot["x"], dot["y"]))
    return {
        "memory": bars([found["memory"]], "{part}"),
        "share": bars([found["shares"]], "{part}"),
        "limit": marks(limits),
        "dots": dots,
    }


DRAWN = {
    "memory": drawn_memory,
    "schedules": drawn_schedules,
    "planner_search": drawn_search,
    "planner": drawn_planner,
}


def compare_live(page, name, **inputs):
    """What a page shows, and what Python answers."""
    shown = page.ask(SHOWN)
    expected = answer(LIVE[name], **inputs)
    assert shown["said"] == [expected["said"]]
    assert shown["tables"] == column(expected["tables"], "rows")
    for key, rows in DRAWN[name](expected).items():
        if key == "words":
            assert shown[key] == rows
        else:
            found = list(itertools.chain(*shown[key]))
            wanted = list(itertools.chain(*rows))
            assert found == pytest.approx(wanted, abs=1e-3), key


@pytest.mark.long(*(f"5-{name}" for name in LIVE))
@pytest.mark.night
@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("times", [5, 25])
def test_pages_show_what_python_answers(page, times, name):
    """Draw inputs, set them, and compare: all controls, then two at a time."""
    widget, drawn = LIVE[name], random.Random(1)
    is_there(page, name)
    example = live.presets(widget)[-1]
    page.click("#widget .presets button", example["label"])
    chosen = dict(example["inputs"])
    answered(page, chosen)
    compare_live(page, name, **chosen)
    for time in range(times):
        for control in widget.CONTROLS if time == 0 else drawn.sample(widget.CONTROLS, 2):
            index = drawn.randrange(len(control["values"]))
            choose(page, control["name"], index)
            chosen[control["name"]] = control["values"][index][0]
        answered(page, chosen)
        compare_live(page, name, **chosen)


@pytest.mark.long
def test_parameters_and_memory_can_be_typed(page):
    """What is no number is named in one line; a link leads to what was typed."""
    is_there(page, "planner")
    type_in(page, "params", "2.7")
    type_in(page, "memory", "40")
    chosen = inputs_of(planner, params=2.7e9, memory=40e9)
    answered(page, chosen)
    compare_live(page, "planner", **chosen)
    assert "--params 2.7e9 --memory 4e10 --price-per-hour 3.99" in page.ask(one("caption") + ".textContent")
    type_in(page, "memory", "-3")
    said = page.ask(one("#widget [role=status]") + ".textContent")
    assert said == "or GB per GPU: type a number, such as 40."
    page.ask("location.hash = 'params=13000000000&memory=40000000000&gpus=8'")
    answered(page, inputs_of(planner, params=13e9, memory=40e9, gpus=8))


@pytest.mark.parametrize("name", LIVE)
def test_an_example_is_answered_without_python(page, name):
    """The worker that loads it never answers here."""
    silent = "window.Worker = class { postMessage() {} };"
    page.call("Page.addScriptToEvaluateOnNewDocument", source=silent)
    page.open(f"widgets/{name}.html")
    for example in [*live.presets(LIVE[name])[::-1]]:
        page.click("#widget .presets button", example["label"])
        answered(page, example["inputs"])
        compare_live(page, name, **example["inputs"])
        pressed = one('#widget .presets [aria-pressed="true"]')
        assert page.ask(f"{pressed}.textContent") == example["label"]


SIGHT = """(() => {
    const box = (node) => { const { top, bottom } = node.getBoundingClientRect(); return [top, bottom]; };
    const answer = document.querySelector("#widget p.answer");
    return [...document.querySelectorAll("#widget form :is(input, select)")].map((control) => {
        control.scrollIntoView({ block: "nearest", behavior: "instant" });
        return [control.name, ...box(control), ...box(answer)];
    });
})()"""


@pytest.mark.parametrize("name", LIVE)
def test_on_a_phone_the_answer_is_in_sight_beside_every_control(page, name):
    page.resize(400, 800)
    page.open(f"widgets/{name}.html")
    found = page.ask(SIGHT)
    assert len(found) == len(LIVE[name].CONTROLS)
    for control, top, bottom, answer_top, answer_bottom in found:
        assert 0 <= top < bottom, control
        assert bottom <= answer_top + 1, f"{control} is behind the answer"
        assert answer_top < answer_bottom <= 801, f"{control}: the answer is below the screen"


RING = """(() => {
    const cells = {};
    for (const node of document.querySelectorAll("#widget [data-cell]")) {
        cells[node.dataset.cell] = (cells[node.dataset.cell] || "") + node.textContent;
    }
    const bars = [...document.querySelectorAll("#widget [data-through]")].map((node) =>
        Number(node.getAttribute("height")));
    return {
        cells, bars, server: Number(document.querySelector("[data-server]").dataset.server),
        said: document.querySelector("#widget [role=status]").textContent,
        table: [...document.querySelectorAll("#widget tbody tr")].map((row) =>
            [...row.children].map((cell) => cell.textContent)),
    };
})()"""


def compare_ring(page, way, size, chunks, position):
    shown = page.ask(RING)
    steps, chunks = ring.steps_of(way, size, chunks)
    holds = ring.play(size, [moves for _, moves in steps], chunks)[position]
    for rank, chunk in itertools.product(range(size), range(chunks)):
        has = "".join(map(str, sorted(holds[rank][chunk])))
        assert shown["cells"][f"{rank} {chunk}"] == ("Σ" if len(has) == size else has)
    through = [0] * size
    for _, moves in steps[:position]:
        for source, target, *_ in moves:
            through[source] += 1 / chunks
            through[target] += 1 / chunks
    whole = 2 * (size - 1)  # of K, through the server
    assert shown["bars"] == pytest.approx([58 * amount / whole for amount in through], abs=0.05)
    assert shown["server"] == min(position, whole), "K through the server after as many steps: one for each"
    if position:
        name = steps[position - 1][0]
        assert shown["said"].startswith(f"Step {position} of {len(steps)}, {name}: ")
        assert f"so far: {max(through):.2f} x; " in shown["said"]
        assert ("All processes have the sum." in shown["said"]) == (position == len(steps))
    assert shown["table"] == ring.table(size)


@pytest.mark.long("5")
@pytest.mark.night
@pytest.mark.parametrize("times", [5, 25])
def test_the_ring_shows_what_python_says_at_every_step(page, times):
    drawn = random.Random(1)
    page.open("widgets/ring.html")
    for _ in range(times):
        size = drawn.choice(ring.PROCESSES)
        way = drawn.choice([way for way in ring.WAYS if ring.is_there(way, size)])
        chunks = drawn.choice(ring.CHUNKS) if way == "ring" else size
        choose(page, "way", 0)
        choose(page, "processes", size - 2)
        choose(page, "way", list(ring.WAYS).index(way))
        if way == "ring":
            choose(page, "chunks", chunks - 1)
        count = len(ring.steps_of(way, size, chunks)[0])
        position = drawn.randint(0, count)
        choose(page, "step", position)
        compare_ring(page, way, size, chunks, position)
        if position < count:
            page.click("#widget button", "step")
            compare_ring(page, way, size, chunks, position + 1)


@pytest.mark.long
def test_the_ring_is_walked_by_keyboard_and_plays_to_its_end(page):
    page.open("widgets/ring.html")
    page.ask(f"{one('#widget [name=step]')}.focus()")
    page.press("ArrowRight")
    compare_ring(page, "ring", 4, 4, 1)
    page.click("#widget button", "play")
    said = f"{one('#widget [role=status]')}.textContent"
    page.until(f"{said}.includes('All processes have')", "the end")
    page.until(f"{every('#widget .buttons button')}[3].textContent == 'play'", "a rest")
    compare_ring(page, "ring", 4, 4, 6)


def test_without_python_and_without_scripts_a_page_shows_what_it_was_built_with(page):
    page.open("widgets/schedules.html")
    compare_live(page, "schedules")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open("widgets/schedules.html")
    words = page.ask(f"{one('#widget')}.textContent")
    assert answer(schedules)["said"] in words and "With JavaScript, the page has controls" in words
    assert page.count("#widget svg") == 0
