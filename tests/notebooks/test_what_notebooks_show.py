"""What the prose of notebooks 09, 13 and 14 says about their outputs, wherever they were executed."""

import re

import pytest

from tools import notebooks


def cells(stem):
    return notebooks.read(notebooks.FOLDER / f"{stem}.ipynb").cells


def printed(stem):
    """What the cells print, as one text."""
    texts = []
    for cell in cells(stem):
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                texts.append(output["text"])
    return "\n".join(texts)


def table(stem, second):
    """The rows of the table whose second column has this head: a list of cells for each."""
    for cell in cells(stem):
        for output in cell.get("outputs", []):
            lines = output.get("data", {}).get("text/markdown", "").splitlines()
            if lines and lines[0].startswith("|"):
                head, _, *rows = map(parts_of, lines)
                if head[1] == second:
                    return rows
    raise LookupError(second)


def parts_of(line):
    return [part.strip() for part in line.strip("|").split("|")]


def alt_text(stem, words):
    """The alt text of the picture that a cell with these words draws."""
    for cell in cells(stem):
        if cell.cell_type == "code" and words in cell.source:
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    return output["metadata"]["image/png"]["alt"]
    raise LookupError(words)


# ---- 09


@pytest.fixture(scope="module")
def fsdp():
    return printed("09_fsdp")


def numbers(line):
    return [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", line)]


def test_09_all_processes_together_hold_each_number_once(fsdp):
    held = {}
    for prefix, *sizes in re.findall(
        r"^(\d \| |)rank \d holds ([\d,]+) bytes of weights, ([\d,]+) of gradients, ([\d,]+) of momentum",
        fsdp,
        re.M,
    ):
        assert len(set(sizes)) == 1, "weights, gradients and momentum are sharded in the same way"
        held.setdefault(prefix or "4 | ", []).extend(numbers(" ".join(sizes)))
    assert sorted(held) == ["1 | ", "2 | ", "3 | ", "4 | "]
    for sizes in held.values():
        assert sum(sizes) == 3 * 129_128


def test_09_the_function_returns_what_the_run_measured(fsdp):
    rows = re.findall(r"rank \d: measured ([\d,]+) bytes, expected ([\d,]+)", fsdp)
    assert len(rows) == 4
    for measured, expected in rows:
        assert measured == expected


def test_09_the_losses_of_resumed_runs_are_lesson_01s(fsdp):
    differences = re.findall(r"4 processes, then \d: off by at most (\S+)", fsdp)
    assert len(differences) == 3
    assert max(map(float, differences)) < 1e-5


def test_09_the_picture_of_a_checkpoint_has_the_rows_of_predict_1(fsdp):
    assert "10 rows on 4 processes: 3 3 3 1" in fsdp and "10 rows on 3 processes: 4 4 2" in fsdp
    alt = alt_text("09_fsdp", "fsdp.draw_checkpoint(")
    assert "4 files with 3 3 3 1 rows" in alt and "3 processes, which read 4 4 2 rows" in alt


def test_09_thirty_billion_parameters_fit_as_predict_3_says():
    rows = {}
    for gpus, *sizes in table("09_fsdp", "stage 0"):
        rows[int(gpus)] = [float(size.split()[0]) for size in sizes]
    assert min(rows[64][0], rows[64][1]) > 80, "no number of GPUs is enough for stages 0 and 1"
    assert rows[21][2] <= 80 < rows[20][2]
    assert rows[6][3] <= 80 < rows[5][3]
    assert "stage 2 is below it from 21 GPUs on and stage 3 is below it from 6 GPUs on" in alt_text(
        "09_fsdp", "fsdp.draw_formulas("
    )


def test_09_a_step_needs_the_collectives_of_predict_4():
    counts = {}
    sizes = {}
    for name, gathers, scatters, *rest in table("09_fsdp", "all-gathers"):
        counts[name] = gathers, scatters
        sizes[name] = numbers(" ".join(rest))
    assert counts["the lesson"] == counts["--checkpoint-activations"] == ("8", "4")
    assert counts["--no-reshard"] == ("4", "4")
    assert counts["only the root"] == ("1", "1")
    assert sizes["the lesson"][0] < sizes["--no-reshard"][0] == sizes["only the root"][0] == 129_128
    assert sizes["--checkpoint-activations"][1] < 0.2 * sizes["the lesson"][1]


def test_09_checkpointing_runs_the_convolutions_forward_again(fsdp):
    assert "backward linear 1\nforward conv 1\nforward conv 2\nbackward conv 2\n" in fsdp


def test_09_the_mistakes_are_what_the_prose_says(fsdp):
    wrong = re.search(r"^optimizer first +(.+)$", fsdp, re.M)[1].split()
    right = re.search(r"^fully_shard first +(.+)$", fsdp, re.M)[1].split()
    assert len(set(wrong)) == 1 and len(set(right)) == 5
    assert float(right[-1]) < float(right[0])
    alone, together = re.findall(r"^(?:alone|together)\.pt: ([\d,]+) bytes$", fsdp, re.M)
    assert 0.4 < numbers(alone)[0] / numbers(together)[0] < 0.75
    assert "9.weight reports the shape (10, 32)" in fsdp and "holds the shape   (5, 32)" in fsdp
    assert "error: Timed out waiting 4000ms" in fsdp.replace("\n    ", " ")
    assert "each row's seed: 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1" in fsdp


# ---- 13


@pytest.fixture(scope="module")
def gpt():
    return printed("13_gpt")


def test_13_the_killed_run_resumes_on_two(gpt):
    assert "status 1 and on the disk:" in gpt
    assert "resumed in epoch 2 after step 4" in gpt
    first, second = table("13_gpt", "4 processes, killed, then 2")
    assert float(first[-1]) < 1e-5
    assert float(second[-1]) < 1e-5


def test_13_the_picture_of_a_snapshot_shows_the_files_as_the_first_picture_does():
    alt = alt_text("13_gpt", "language.draw_resumed(")
    assert "query, in files of ranks 0, 2, 1, 3; project, in files of ranks 0, 1, 2, 3" in alt


def test_13_most_bytes_travel_over_tensor_and_none_in_the_optimizer():
    sent = {"data": 0, "tensor": 0}
    for when, _, over, _, size in table("13_gpt", "what"):
        assert when in ("forward", "backward")
        sent[over] += numbers(size)[0]
    assert sent["tensor"] > 3 * sent["data"]


def test_13_the_model_learns_its_text_by_heart(gpt):
    first, last = re.search(r"trained on: from (\S+) to (\S+)", gpt).groups()
    assert float(first) > 3.5 and float(last) < 0.3
    lowest, end = re.search(r"held back: \S+, then (\S+), in the end (\S+)", gpt).groups()
    assert float(lowest) < float(end) - 0.3


def test_13_with_one_seed_all_ranks_write_what_the_unsharded_model_wrote(gpt):
    texts = re.findall(r"^rank \d: '(.+)'$", gpt, re.M)
    wrong, right = texts[:4], texts[4:]
    assert len(set(wrong)) == 4 and len(set(right)) == 1 and len(right) == 4
    unsharded = gpt.split("---- temperature 0.5\n\n")[1].replace("   (Lear)", "")
    ours = right[0].encode().decode("unicode_escape").split("\n\n")[0]
    assert unsharded.startswith(ours)
    alt = alt_text("13_gpt", "language.draw_written(")
    assert alt.count("differ from character") == 2 and alt.count("write the same characters") == 2


# ---- 14


@pytest.fixture(scope="module")
def tuning():
    return printed("14_tuning")


def trials(text):
    """Of each trial that a search printed: its settings, its accuracy and how it ended."""
    found = {}
    for number, settings, accuracy, ended in re.findall(
        r"^trial +(\d+) \| (lr \S+ \| batch +\d+) \| +(\S+)% after epoch \d \| (\w+)$", text, re.M
    ):
        found[int(number)] = settings, float(accuracy), ended
    return found


def test_14_both_searches_draw_the_same_settings_and_pruning_saves_epochs(tuning):
    _, pruned, whole, *_ = re.split(r"^(?=trial +0 \|)", tuning, flags=re.M)
    with_pruning = trials(pruned.split("\n10 trials")[0])
    without = trials(whole.split("\n10 trials")[0])
    assert list(with_pruning) == list(without) == list(range(10))
    for number, (settings, accuracy, ended) in with_pruning.items():
        expected_settings, expected_accuracy, _ = without[number]
        assert settings == expected_settings
        if ended == "complete":
            assert accuracy == expected_accuracy
    epochs = {}
    for name, _, trained, *_ in table("14_tuning", "trials pruned"):
        epochs[name] = int(trained)
    assert 22 <= epochs["pruned"] < epochs["whole"] == 40


def test_14_the_lost_trial_is_tried_again_and_the_kill_is_marked(tuning):
    lost, again = re.search(r"trial (\d) was lost; trial (\d) tries its parameters again", tuning).groups()
    assert int(again) >= 8 > int(lost), "the eight trials, and the one that was tried again"
    assert f"trial   {lost} | lost: its worker is silent" in tuning
    alt = alt_text("14_tuning", "searching.draw_workers(")
    silent = float(re.search(r"stays silent for (\S+) seconds", alt)[1])
    assert 3 < silent < 10, "--time-limit 5, and a heartbeat once a second before the kill"


def test_14_the_budget_ends_the_search_and_it_is_closed(tuning):
    assert float(re.search(r"spent: \$(\S+), after", tuning)[1]) >= 10
    assert "has ended" in tuning


def test_14_the_loop_spends_most_of_its_time_before_it_trains(tuning):
    whole, trained = map(float, re.search(r"(\S+) seconds, of which it trained (\S+)", tuning).groups())
    assert trained < whole / 2


def test_14_one_seed_for_all_workers_draws_each_rate_twice(tuning):
    careless = re.search(r"RandomSampler\(seed=0\): +\[(.+)\]", tuning)[1].split(", ")
    careful = re.search(r"ByNumber\(seed=0\): +\[(.+)\]", tuning)[1].split(", ")
    assert len(set(careless)) == 3 and len(set(careful)) == 6
