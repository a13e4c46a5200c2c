"""What the pictures of notebooks 13 to 16 claim, against their outputs and against PyTorch."""

import re
from argparse import Namespace
from importlib.util import find_spec

import matplotlib.pyplot as plt
import pytest
import torch
from torch.nn.functional import cross_entropy

from parts import experts
from parts.ring_attention import positions_of
from show import s13_language as language
from show import s15_contexts as contexts
from show import s16_routing as routing
from tests.helpers.shown import alts, outputs, printed, table


@pytest.fixture
def said(monkeypatch):
    """The alt texts of the pictures that a test draws."""
    texts = []
    for module in (language, contexts, routing):
        monkeypatch.setattr(module, "picture", texts.append)
    yield texts
    plt.close("all")


def alt(stem, beginning):
    return next(text for text in alts(stem) if text.startswith(beginning))


@pytest.mark.parametrize("right", [0, 2, 3, 5])
def test_13_three_numbers_give_the_loss_on_whichever_rank_the_right_character_is(said, right):
    generator = torch.Generator().manual_seed(right)
    halves = list((5 * torch.randn(6, generator=generator)).split(3))
    language.draw_loss_parallel(halves, right)
    expected = cross_entropy(torch.cat(halves), torch.tensor(right)).item()
    assert f"each rank computes the loss, {expected:.2f}. The scores do not travel." in said[0]


def test_13_the_loss_of_the_picture_is_the_printed_one():
    loss = re.search(r"from three numbers: (\S+); from all six scores: \1$", printed("13_gpt"), re.M)[1]
    assert f"the loss, {float(loss):.2f}." in alt("13_gpt", "A position has 3 scores on rank 0")


def test_13_three_all_reduces_send_one_number_for_each_position():
    sent = {}
    for times, size in re.findall(r"^(\d+) x ([\d,]+) bytes$", printed("13_gpt"), re.M):
        size = int(size.replace(",", ""))
        sent[size] = sent.get(size, 0) + int(times)
    assert sent == {8 * 176 * 4: 3, 8 * 176 * 64 * 4: 4}


def test_13_the_picture_of_a_step_has_as_many_collectives_as_rank_0_noted():
    drawn = {}
    for passes in language.STEP.values():
        for when, collectives in zip(("forward", "backward"), passes, strict=True):
            for kind, dimension, times in collectives:
                drawn[when, kind, dimension] = drawn.get((when, kind, dimension), 0) + times
    noted = {}
    for output in outputs("13_gpt"):
        lines = output.get("data", {}).get("text/markdown", "").splitlines()
        if lines and lines[0].startswith("| when | what |"):
            for line in lines[2:]:
                *key, times, _ = line.strip("| ").split(" | ")
                noted[tuple(key)] = int(times)
    assert noted and drawn == noted


def test_13_the_two_snapshots_on_the_disk_are_those_that_save_leaves():
    text = printed("13_gpt")
    assert re.findall(r"^13_gpt\.(epoch\S+)\.snapshot$", text, re.M) == [
        "epoch0002-step000002",
        "epoch0002-step000004",
    ]
    shown = [output.get("data", {}).get("text/markdown", "") for output in outputs("13_gpt")]
    assert any("for old in self.find()[:-2]:" in code for code in shown)


def test_13_the_three_all_reduces_of_the_loss_stand_beside_the_loss(said):
    language.draw_parts()
    heights = {}
    for text in plt.gcf().axes[0].texts:
        heights.setdefault(text.get_text().replace("\n", " "), []).append(text.get_position()[1])
    assert heights["3 all-reduces over tensor"] == heights["loss"]
    assert len(heights["all-reduce over tensor"]) == 2, "after project and down, and none beside the head"


def test_15_the_shares_of_the_merge_are_the_printed_ones():
    first, second = re.search(r"shares: (\S+) and (\S+)", printed("15_context_parallel")).groups()
    text = alt("15_context_parallel", "The weights of 6 keys")
    assert f"a share of {first} and" in text and f"a share of {second}. Below" in text


def test_13_two_ranks_part_where_their_printed_texts_do():
    first, second = re.findall(r"^rank [01]: '(.+)'$", printed("13_gpt"), re.M)[:2]
    at = next(number for number, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    assert f"they draw {first[at]!r} and {second[at]!r}." in alt("13_gpt", "Ranks 0 and 1 have texts")


def test_13_the_picture_of_the_steps_resumes_where_the_run_did():
    step = int(re.search(r"resumed in epoch 2 after step (\d+)", printed("13_gpt"))[1])
    text = alt("13_gpt", "The 10 steps of epoch 2")
    assert f"snapshot is from step {step}. Two processes continue with step {step + 1} and" in text


def test_14_the_picture_of_the_images_has_the_numbers_of_the_commands():
    train, test = map(int, re.search(r"--train-size (\d+) --test-size (\d+)", printed("14_tuning")).groups())
    text = alt("14_tuning", f"{train * 9 // 10:,} images train the models.")
    assert f"{train // 10} images that are split off" in text and f"{test} test images are read once" in text


def test_14_the_median_is_that_of_the_complete_trials_and_needs_four():
    if find_spec("optuna") is None:
        pytest.skip("needs optuna: make tools installs it")
    from optuna.trial import TrialState

    from show import s14_searching as searching

    trials = []
    for accuracy in (0.1, 0.2, 0.4, 0.8, 0.5):
        trials.append(Namespace(intermediate_values={1: accuracy}, state=TrialState.COMPLETE))
    trials.insert(1, Namespace(intermediate_values={1: 0.0}, state=TrialState.PRUNED))
    assert searching.median_before(trials, 4) is None, "three trials are complete"
    assert searching.median_before(trials, 5) == pytest.approx(0.3)


def test_14_the_winner_was_spared_by_a_tie():
    text = alt("14_tuning", "10 trials in rows")
    first, median = re.search(r"After epoch 1, it has (\S+), and the median is (\S+)\.$", text).groups()
    assert first == median


def test_14_the_running_trials_of_dead_workers_are_marked_as_failed_and_wait_to_be_tried():
    before, marked, after = re.search(
        r"^((?:trial \d: [A-Z]+\n)+)(?s:.*?)\n((?:trial +\d+ \| lost: .*\n)+)((?:trial \d: [A-Z]+\n)+)",
        printed("14_tuning"),
        re.M,
    ).groups()
    running = re.findall(r"trial (\d): RUNNING", before)
    assert running == re.findall(r"trial +(\d+) \| lost", marked) == re.findall(r"trial (\d): FAIL", after)
    assert "RUNNING" not in after and 0 < after.count("WAITING") <= len(running)


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_15_the_picture_of_the_blocks_names_the_rank_that_holds_each_chunk(order):
    """A text of six chunks of two positions, on three ranks."""
    held = {}
    for chunk, rank in contexts.owners_of_chunks(3, order).items():
        held.setdefault(rank, []).extend([2 * chunk, 2 * chunk + 1])
    for rank in range(3):
        assert sorted(held[rank]) == sorted(positions_of(rank, 3, order, 12).tolist())


def test_15_the_costs_of_the_picture_are_those_of_the_table():
    text = alt("15_context_parallel", "What a process sends and keeps")
    for processes, way, _, sends, _, keeps in rows_of_three_ways():
        words = f"on {processes} processes, the {way} sends {float(sends):.0f} and keeps {float(keeps):.0f}"
        assert words in text


@pytest.mark.parametrize("text", ["abcdefghi", "abcdefghijklm"])
def test_15_the_picture_of_two_mistakes_counts_what_the_mistakes_make_wrong(said, text):
    length = len(text) - 1
    positions = torch.arange(length)
    wrong_positions = 0
    wrong_targets = 0
    for rank in (0, 1):
        own = positions_of(rank, 2, "zigzag", length)
        wrong_positions += (own != positions[: len(own)]).sum().item()
        wrong_targets += (positions[own].roll(-1) != own + 1).sum().item()
    contexts.draw_two_mistakes(text)
    assert f"they have {wrong_positions} of {length} wrong" in said[0]
    assert f"sharding, {wrong_targets} of {length} targets are wrong" in said[0]


@pytest.mark.parametrize("count", [1, 4, 5])
def test_15_merged_bars_are_the_softmax_over_all_keys(monkeypatch, said, count):
    drawn = []
    bar = plt.Axes.bar

    def note(axes, keys, heights, *more, **looks):
        drawn.append(heights)
        return bar(axes, keys, heights, *more, **looks)

    monkeypatch.setattr(plt.Axes, "bar", note)
    scores = 3 * torch.randn(6, generator=torch.Generator().manual_seed(count))
    contexts.draw_merge(scores, count)
    first, first_share, second, second_share = drawn
    assert sum(first) == pytest.approx(1) and sum(second) == pytest.approx(1)
    assert first_share + second_share == pytest.approx(scores.softmax(dim=0).tolist())


def test_15_the_parts_that_travel_are_those_of_the_formula(said):
    """Each of n processes sends (n - 1) / n of a tensor; the table counts four of them, each way."""
    sent = {}
    for row in rows_of_three_ways():
        sent[row[0], row[1]] = float(row[2])
    for processes in (2, 4):
        contexts.draw_all_to_all(processes)
        travels, parts = map(int, re.search(r"(\d+) of the (\d+) parts travel", said[-1]).groups())
        assert sent[str(processes), "all-to-all"] == pytest.approx(8 * travels / parts, abs=0.1)


def test_15_the_mask_hides_the_shards_that_the_ring_skips(said):
    contexts.draw_all_gather(4)
    skipped = 0
    for steps in table("15_context_parallel", "keys in").values():
        skipped += sum("skipped" in step for step in steps)
    assert f"The mask hides {skipped} of the 16 gathered shards" in said[0]


def test_15_each_hidden_shard_is_struck_out(said):
    contexts.draw_all_gather(4)
    struck_out = dict.fromkeys(range(4), 0)
    for line in plt.gca().lines:
        rank = round((7.6 - min(line.get_ydata())) / 2)
        struck_out[rank] += 1
    assert struck_out == {0: 3, 1: 2, 2: 1, 3: 0}


def rows_of_three_ways():
    for output in outputs("15_context_parallel"):
        lines = output.get("data", {}).get("text/markdown", "").splitlines()
        if lines and lines[0].startswith("| processes | way |"):
            return [line.strip("| ").split(" | ") for line in lines[2:]]
    raise AssertionError("15_context_parallel does not compare the three ways")


def test_16_the_layer_computes_what_the_loop_computes():
    for held, chosen, difference in table("16_experts", "").values():
        assert held == "2" and len(chosen.split()) == 6
        assert float(difference) < 1e-5


@pytest.mark.parametrize("capacity", [1, 2])
def test_16_the_picture_of_a_full_expert_drops_the_tokens_that_the_layer_drops(monkeypatch, said, capacity):
    monkeypatch.setattr(experts.dist, "get_rank", lambda: 0)
    chosen = torch.tensor([1, 0, 1, 1, 2, 1, 3, 1])
    layer = Namespace(capacity=capacity, count=4)
    counts = chosen.bincount(minlength=4)[None]
    kept, _ = experts.Experts.drop(layer, chosen.argsort(stable=True), counts)
    routing.draw_capacity(chosen.tolist(), experts=4, capacity=capacity)
    dropped = sorted(set(range(len(chosen))) - set(kept.tolist()))
    assert said[0].endswith(f"dropped: {', '.join(f't{token}' for token in dropped)}.")


def test_16_the_router_of_the_picture_sends_the_token_where_its_weight_is_highest():
    text = alt("16_experts", "A token, the router")
    weights = [float(weight) for weight in re.findall(r"weight (\d\.\d\d)", text)]
    highest = max(weights)
    assert f"goes to expert {weights.index(highest)}. Its output is multiplied by {highest:.2f}." in text


def test_16_the_picture_of_the_loads_is_of_the_block_that_it_names(said):
    loads = [[[0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]]] * 3
    routing.draw_loads({"with it": loads, "without it": loads}, block=2)
    assert said[0].startswith("The share of the tokens that each expert of block 2 gets")
    assert said[0].count("the busiest ends with 70%") == 2
    for axes in plt.gcf().axes:
        title = axes.get_title() or axes.get_title(loc="left")
        assert title.startswith("block 2, ")
        first_band = axes.collections[0].get_paths()[0].vertices
        assert first_band[:, 1].max() == pytest.approx(70)


def test_16_the_picture_shows_the_block_that_the_prose_names():
    assert "each expert of block 1 gets" in alt("16_experts", "The share of the tokens")
