"""What notebooks 11, 15 and 16 say about what they show, and what their scripts find on every rank."""

import itertools
import re

import pytest

from show import processes
from tools import notebooks


def only(texts, beginning):
    """The one text that begins so."""
    (found,) = [text for text in texts if text.startswith(beginning)]
    return found


class Stored:
    """A notebook as it is stored: what it prints, its tables, and the alt texts of its pictures."""

    def __init__(self, stem):
        self.notebook = notebooks.read(notebooks.FOLDER / f"{stem}.ipynb")
        self.printed, self.pictures, self.tables = "", [], []
        for cell in self.notebook.cells:
            for output in cell.get("outputs", []):
                if output["output_type"] == "stream":
                    self.printed += output["text"]
                elif "image/png" in output["data"]:
                    self.pictures.append(output["metadata"]["image/png"]["alt"])
                elif output["data"].get("text/markdown", "").startswith("| "):
                    self.tables.append(output["data"]["text/markdown"])

    def rows(self, head):
        """The rows of the table whose head begins like this, each a list of texts."""
        rows = []
        for line in only(self.tables, f"| {head} |").splitlines()[2:]:
            cells = line.replace("\\", "").strip("|").split("|")
            rows.append(list(map(str.strip, cells)))
        return rows

    def picture(self, beginning):
        return only(self.pictures, beginning)

    def results(self, folder, name, count):
        """Run a script that the notebook writes, on so many ranks."""
        for cell in self.notebook.cells:
            first, _, script = cell.source.partition("\n")
            if first.startswith("%%writefile {out}/"):
                (folder / first.removeprefix("%%writefile {out}/")).write_text(script)
        ranks = processes.ranks(folder / name, count, limit=120, quiet=True)
        return [rank.result for rank in ranks]


@pytest.fixture(scope="module")
def tensors():
    return Stored("11_tensor_parallel")


@pytest.fixture(scope="module")
def context():
    return Stored("15_context_parallel")


@pytest.fixture(scope="module")
def experts():
    return Stored("16_experts")


def percent(text):
    return int(text.removesuffix("%"))


# ---- 11 -----------------------------------------------------------------------------------------


def test_11_four_ways_have_one_loss_and_differ_in_their_collectives(tensors):
    losses = re.findall(r"^loss of this step, \w+: ([\d.]+)$", tensors.printed, re.M)
    assert len(losses) == 4 and len(set(losses)) == 1
    tensor, sequence = tensors.rows("parallel")
    assert tensor == ["tensor", "4 all_reduce", "4 all_reduce"]
    both = "5 all_gather_into_tensor, 4 reduce_scatter_tensor"
    assert sequence == ["sequence", both, both]
    assert "with the line:    4 all_reduce\nwithout the line: 8 all_reduce\n" in tensors.printed
    assert tensors.rows("collectives in one step of") == [["SGD", "0", "10"], ["AdamW", "0", "30"]]


def test_11_bytes_and_memory_are_as_the_sentences_say(tensors):
    images, hidden = tensors.rows(" | data parallel")
    assert images == ["twice the images", "1.00", "2.00"]
    assert 3.5 < float(hidden[1]) < 4 and hidden[2] == "2.00"
    alt = tensors.picture("Kept for the backward pass")
    kept = list(map(float, re.findall(r"([\d.]+) MB", alt)))
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 3


def test_11_only_one_mistake_raises_an_error(tensors):
    losses = {}
    for mistake, rank, found in tensors.rows("mistake"):
        losses[mistake, rank] = found
    alone = losses["not sharded", "rank 0"]
    assert losses["none", "rank 0"] == losses["none", "rank 1"] == alone
    for mistake in ("other images", "other seeds"):
        assert losses[mistake, "rank 0"] != losses[mistake, "rank 1"]
    assert losses["all four heads", "rank 0"] == losses["all four heads", "rank 1"] != alone
    assert losses["columns twice", "rank 0"].startswith("a and b must have same reduction dim")


@pytest.mark.night
def test_11_the_bytes_are_those_of_the_formulas(tensors, tmp_path):
    for row in tensors.results(tmp_path, "traffic.py", 2)[0]:
        if row["way"] == "data":
            assert row["sent"] == 4 * row["parameters"]
        elif row["way"] == "tensor":
            assert row["sent"] == 4 * 4 * 2 * row["batch"] * 28 * row["hidden"]


@pytest.mark.night
def test_11_norms_are_the_same_on_both_ranks(tensors, tmp_path):
    first, second = tensors.results(tmp_path, "held.py", 2)
    assert first["attention_norm.weight"] == second["attention_norm.weight"]


# ---- 15 -----------------------------------------------------------------------------------------


def count_multiply_adds(blocks, processes, texts, heads, length, size):
    chunk = length // (2 * processes)
    return [count * 7 * texts * heads * chunk**2 * size for count in blocks]


def test_15_blocks_and_multiply_adds_are_counted_and_calculated(context):
    assert "contiguous [3, 7, 11, 15]\nzigzag     [9, 9, 9, 9]\n" in context.printed
    for order, blocks in (("contiguous", (3, 7)), ("zigzag", (5, 5))):
        first, second = count_multiply_adds(blocks, 2, 12, 4, 288, 16)
        millions = f"{first / 1e6:.0f} {second / 1e6:.0f} million"
        assert re.search(rf"^{order} +\| \d+ ms \| multiply-adds: {millions}$", context.printed, re.M)
        by_formula = f"{first / 1e6:.0f} and {second / 1e6:.0f} million"
        assert f"by formula, {order}: {by_formula}\n" in context.printed
    alt = context.picture("Attention on four ranks")
    for blocks in ((3, 7, 11, 15), (9, 9, 9, 9)):
        counts = count_multiply_adds(blocks, 4, 4, 4, 960, 16)
        assert ", ".join(f"{count / 1e6:.0f}" for count in counts) in alt


def test_15_one_process_and_two_have_the_same_accuracies(context):
    accuracies = re.findall(r"^epoch +\d \| .*accuracy (\S+) ", context.printed, re.M)
    assert len(accuracies) == 6 and accuracies[:3] == accuracies[3:]


def test_15_the_ring_skips_the_keys_of_later_ranks(context):
    for rank, (name, *steps, difference) in enumerate(context.rows("keys in")):
        assert name == f"rank {rank}" and float(difference) < 1e-5
        expected = []
        for step in range(4):
            owner = (rank - step) % 4
            expected.append(f"of {owner}" if owner <= rank else f"of {owner}: skipped")
        assert steps == expected


def test_15_what_three_ways_send_and_keep_is_what_the_formulas_say(context):
    rows = context.rows("processes")
    ways = itertools.product("24", ("ring", "all-gather", "all-to-all"))
    for row, expected in zip(rows, ways, strict=True):
        *way, sent, by_formula, kept, kept_by_formula = row
        assert tuple(way) == expected
        assert sent in (by_formula, "not counted") and kept == kept_by_formula
    (difference,) = re.findall(r"from the results of one process: (\S+)\n", context.printed)
    assert float(difference) < 1e-4


def test_15_memory_grows_with_the_square_of_the_length(context):
    one, two, four, kernel = context.rows("peak MB, positions:")
    last = {}
    for name, _, _, before, after in (one, two, four):
        last[name] = float(after)
        assert 3 < float(after) / float(before) < 4.1, name
    assert 3 < last["1 process"] / last["2 processes"] < 4.1
    assert 3 < last["2 processes"] / last["4 processes"] < 4.1
    assert float(kernel[4]) / float(kernel[3]) < 2.1


def test_15_each_mistake_has_losses_of_its_own(context):
    losses = {}
    for mistake, *found in context.rows("mistake"):
        losses[mistake] = tuple(found)
    assert losses["none"] == losses["one process"]
    assert len(losses) == 6 and len(set(losses.values())) == 5


@pytest.mark.night
@pytest.mark.parametrize("n", [2, 4])
def test_15_three_ways_keep_the_same_on_every_rank(context, tmp_path, n):
    keeps = {"ring": 4, "all-gather": 2 * n + 2, "all-to-all": 4}
    unit = 4 * 2 * 4 * (1536 // n) * 64
    for rank in context.results(tmp_path, "three.py", n):
        for way, found in rank.items():
            assert found["kept"] == (keeps[way] + 1 / 64) * unit
            assert found["off"] < 1e-4


# ---- 16 -----------------------------------------------------------------------------------------


def test_16_the_layer_computes_what_a_loop_over_tokens_computes(experts):
    for rank, row in enumerate(experts.rows(" | experts held")):
        assert row[0] == f"rank {rank}" and row[1] == "2" and float(row[3]) < 1e-5
        assert len(row[2].split()) == 6


def test_16_the_counted_bytes_are_those_of_the_formula(experts):
    rows = experts.rows("processes")
    for row, expected in zip(rows, itertools.product("24", "12"), strict=True):
        processes, visited, counted, formula, _ = row
        assert (processes, visited) == expected
        if counted != "not counted":
            assert float(counted) == pytest.approx(float(formula), abs=0.01 * float(formula) + 0.005)


def test_16_only_the_balancing_loss_keeps_all_experts_busy(experts):
    shares = {}
    for name, *parts in experts.rows("the last ten steps"):
        shares.setdefault(name.split(",")[0], []).extend(map(percent, parts))
    assert max(shares["with it"]) < 40 and min(shares["with it"]) > 10
    assert max(shares["without it"]) > 60 and min(shares["without it"]) < 5


def test_16_a_capacity_costs_more_without_the_balancing_loss(experts):
    rows = experts.rows("capacity")
    (*_, unlimited_with, _, unlimited_without), *_, (*_, with_it, _, without_it) = rows
    rise, other_rise = float(with_it) - float(unlimited_with), float(without_it) - float(unlimited_without)
    assert 0 <= rise < other_rise


def test_16_the_output_jumps_only_with_one_expert(experts):
    (both,) = re.findall(r"between two places, both experts: (\S+)\n", experts.printed)
    (better,) = re.findall(r"between two places, the better expert only: (\S+)\n", experts.printed)
    assert float(better) > 10 * float(both)


def test_16_each_mistake_shows_after_the_first_step(experts):
    losses = {}
    for mistake, *found in experts.rows("mistake"):
        losses[mistake] = list(map(float, found))
    alone = losses.pop("one process")
    assert losses.pop("none") == alone
    assert sorted(losses) == ["experts too", "not divided", "own balance", "router alone"]
    for found in losses.values():
        assert found[0] == alone[0] and found[3] != alone[3]


def test_16_the_biases_even_out_the_load(experts):
    (line,) = re.findall(r"^step 1000: load (.*)$", experts.printed, re.M)
    assert max(map(percent, line.split())) < 30
    (difference,) = re.findall(r"^largest difference: (\S+)$", experts.printed, re.M)
    assert float(difference) < 1e-4


@pytest.mark.night
@pytest.mark.parametrize("processes", [2, 4])
def test_16_on_every_rank_the_counted_bytes_are_those_of_the_formula(experts, tmp_path, processes):
    for rank in experts.results(tmp_path, "traffic.py", processes):
        for found in rank.values():
            if found["counted"] is not None:
                assert abs(found["counted"] - found["computed"]) < 0.01 * found["computed"] + 4000
