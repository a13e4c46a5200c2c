"""Lesson 18: one curve, two kills, steps that all ranks skip, tokens, the text and the model."""

import hashlib
import itertools
import os
import random
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from parts import bpe, gpt, guard, language_model, snapshot, source
from tests.helpers.changed_lessons import copy_lessons
from tests.helpers.lines import column, refusal
from tools import launcher, lessons

STEM = "18_language_model"
TINY = "--train-size 90 --test-size 9 --tokens 300 --length 32 --width 32 --layers 2 --steps 20"
TINY = (*TINY.split(), "--batch-size", 12, "--validate-every", 8, "--warm-up", 5)
DOUBLE = (*TINY, "--precision", "fp64")
SAVING = (*TINY, "--snapshot-every", 5)


@pytest.fixture(scope="module")
def code():
    return (launcher.ROOT / "lessons/parts/snapshot.py").read_bytes()


def rows(result):
    """The curve, without what depends on the machine."""
    kept = []
    for row in launcher.read_curve(result.out, STEM):
        kept.append({name: row[name] for name in ("step", "loss", "held_out", "norm", "accuracy")})
    return kept


def off(curve, expected):
    """The largest relative difference."""
    assert column(curve, "step") == column(expected, "step") == [8, 16, 20]
    found = []
    for row, other in zip(curve, expected, strict=True):
        for name in ("loss", "held_out", "norm"):
            found.append(abs(row[name] - other[name]) / other[name])
    return max(found)


def skipped(result):
    return re.search(r"skipped steps: (.*)", result.stdout)[1]


def check_curves(kept, fork, words):
    alone = kept(STEM, 1, *words, "--accumulate", 4)
    for processes, parts in ((2, 2), (4, 1), (3, 4)):
        result = fork(STEM, processes, *words, "--accumulate", parts, folder=str(processes))
        assert off(rows(result), rows(alone)) < 1e-12
        assert skipped(result) == skipped(alone)
        assert result.stderr == ""


def test_the_curve_of_one_process_on_two_three_and_four(kept, fork):
    """In 64 bits, however many micro-batches a step has. 90 windows are 7 steps: it is in its third epoch."""
    check_curves(kept, fork, DOUBLE)
    curve = rows(kept(STEM, 1, *DOUBLE, "--accumulate", 4))
    assert curve[0]["held_out"] > curve[1]["held_out"] > curve[2]["held_out"]


def test_all_ranks_skip_the_same_steps(kept, fork):
    """With a limit so low that ordinary steps are above it."""
    words = (*DOUBLE, "--skip-above", 1.02)
    steps = skipped(kept(STEM, 1, *words, "--accumulate", 4))
    assert re.match(r"\[\d+", steps), "this limit should be too low for an ordinary step"
    assert min(map(int, re.findall(r"\d+", steps))) > guard.FEWEST
    check_curves(kept, fork, words)


BUGS = {
    "a rank skips alone": ("guard.accepts(step, norm)", "guard.accepts(step, loss.item())"),
    "the loss is not weighted": ("loss / (size * arguments.length)", "loss / following.numel()"),
    "no step is skipped": ("if guard.accepts(step, norm):", "if True:"),
    "clips each micro-batch": (
        "loss_sum += loss.detach()",
        "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
    ),
}


@pytest.mark.quick("a rank skips alone")
@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_these_bugs_change_the_curve(kept, forked, tmp_path, bug):
    words = (*DOUBLE, "--skip-above", 1.02)
    copy_lessons(tmp_path / "lessons")
    script = tmp_path / f"lessons/{STEM}.py"
    lesson, (right, wrong) = script.read_text(), BUGS[bug]
    assert lesson.count(right) == 1
    script.write_text(lesson.replace(right, wrong))
    result = forked(launcher.command("04_ddp_torchrun", 2, *words, script=script)[0])
    assert result.code == 0, result.stderr
    assert off(rows(result), rows(kept(STEM, 1, *words, "--accumulate", 4))) > 1e-6


@pytest.mark.long
@pytest.mark.parametrize("processes", [2, 3], ids=str)
def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(kept, fork, processes):
    """The second kill comes after a snapshot that no validation has followed yet."""
    whole = kept(STEM, processes, *SAVING)
    for step in (7, 15):
        killed = fork(STEM, processes, *SAVING, "--crash-at", step, refused=True)
        assert killed.code != 0
    assert "resumed after step 5\n" in killed.stdout
    resumed = fork(STEM, processes, *SAVING)
    assert "resumed after step 15\n" in resumed.stdout
    assert (resumed.out / f"{STEM}.pt").read_bytes() == (whole.out / f"{STEM}.pt").read_bytes()
    assert rows(resumed)[1:] == rows(whole)[1:]
    assert off(rows(resumed), rows(whole)) < 1e-7  # losses are averaged when a snapshot is saved
    assert (
        resumed.stdout.rpartition("step    20")[2].splitlines()[1:]
        == (whole.stdout.rpartition("step    20")[2].splitlines()[1:])
    )
    again = fork(STEM, processes, *SAVING)
    assert "nothing is left to train" in again.stderr
    assert (again.out / f"{STEM}.pt").read_bytes() == (whole.out / f"{STEM}.pt").read_bytes()


def test_what_a_run_leaves(kept):
    out = kept(STEM, 3, *SAVING).out
    left = {re.sub(r"-[0-9a-f]{12}-", "-*-", name) for name in os.listdir(out)}
    assert left == {
        f"{STEM}.epoch0000-step000000015.snapshot",
        f"{STEM}.epoch0000-step000000020.snapshot",
        f"{STEM}.jsonl",
        f"{STEM}.lock",
        f"{STEM}.pt",
        f"{STEM}.tokens-*-300.pt",
        "ticket",
    }


@pytest.mark.long
def test_as_documented_only_shorter(run):
    result = run(STEM, 2, *lessons.get(STEM).small.split(), "--epochs", 1)
    assert (
        len(re.findall(r"^step .*bits per byte .* held out .* norm .* tokens/s$", result.stdout, re.M)) == 1
    )
    assert result.stderr == ""


# ---- what is refused --------------------------------------------------------------------------

REFUSED = """
2 --accumulate 7: --accumulate must be from 1 to the 6 windows of a process, not 7
1 --data mnist: this lesson reads text, not mnist: use --text FOLDER
1 --text nowhere: --text nowhere is not a folder
1 --steps 0: --steps must be at least 1, not 0
1 --tokens 256: --tokens must be from 257 to 100000, not 256
1 --tokens 30000: this text has only
1 --heads 3: --width 32 is not a multiple of twice the 3 heads
1 --clip-norm 0: --clip-norm must be above 0 (inf to clip nothing), not 0.0
1 --skip-above 1: --skip-above must be above 1 (inf to skip only nan), not 1.0
1 --lr 1e30 --warm-up 1 --clip-norm inf --skip-above inf --steps 40: 20 steps in a row, up to step
""".strip().splitlines()


@pytest.mark.quick(*REFUSED[:3])
@pytest.mark.long
@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_what_cannot_work_is_refused_in_one_line(fork, row):
    typed, _, message = row.partition(": ")
    processes, *options = typed.split()
    result = fork(STEM, int(processes), *TINY, *options, refused=True)
    result.stdout = "" if "in a row" in row else result.stdout
    assert message in refusal(result)


def test_a_snapshot_of_another_text_is_refused(fork, tmp_path, code):
    folder = tmp_path / "text"
    folder.mkdir()
    words = (*TINY, "--text", folder, "--steps", 1)
    for number in range(60):
        (folder / f"{number}.txt").write_bytes(code[100 * number : 100 * number + 3000])
    fork(STEM, 1, *words)
    # This is one of the few files that so short a run reads.
    (folder / "2.txt").write_bytes(code[5:3000])
    result = fork(STEM, 1, *words, refused=True)
    assert re.search(r"has data text \w{12} in 300 tokens, not text \w{12} in 300 tokens: ", result.stderr)


# ---- the guard --------------------------------------------------------------------------------


def test_the_guard_skips_what_is_not_finite_or_four_times_the_usual():
    watch = guard.Guard(4)
    nan, inf = float("nan"), float("inf")
    assert not watch.accepts(1, nan) and not watch.accepts(2, inf)
    assert watch.accepts(3, 1000.0)  # so early, nothing is usual
    for step in range(4, 14):
        assert watch.accepts(step, 1 + step / 100)
    assert not watch.accepts(14, 4.5) and not watch.accepts(15, nan) and watch.accepts(16, 4.2)
    assert watch.skipped == [1, 2, 14, 15]
    other = guard.Guard(4)
    other.load_state_dict(watch.state_dict())
    assert not other.accepts(17, 4.5) and other.accepts(18, 4.2)
    for step in range(100, 160):
        assert other.accepts(step, 2.0)
    assert other.norms == [2.0] * guard.USUAL


def test_the_guard_ends_a_run_that_learns_nothing_any_more(capsys):
    watch = guard.Guard()
    for step in range(1, guard.IN_A_ROW):
        assert not watch.accepts(step, float("nan"))
    assert watch.accepts(20, 1.0)  # so it begins to count again
    for step in range(21, 21 + guard.IN_A_ROW - 1):
        assert not watch.accepts(step, float("nan"))
    with pytest.raises(SystemExit):
        watch.accepts(40, float("nan"))
    assert "error: 20 steps in a row, up to step 40, were skipped" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_refused(capsys):
    model = torch.nn.Linear(2, 2)
    guard.require_finite(model, "stop")
    with torch.no_grad():
        model.weight[0, 1] = float("nan")
    with pytest.raises(SystemExit):
        guard.require_finite(model, "stop")
    assert "error: weight is not finite: stop\n" in capsys.readouterr().err


def test_a_snapshot_with_nan_is_refused(fork):
    words = (*SAVING, "--steps", 10)
    out = fork(STEM, 1, *words).out
    (newest,) = out.glob(f"{STEM}.*-step000000010.snapshot")
    state = snapshot.unseal(newest.read_bytes())
    state["model"]["norm.weight"][3] = float("nan")
    newest.write_bytes(snapshot.seal(state))
    result = fork(STEM, 1, *words, refused=True)
    advice = "remove the snapshot of step 10, and resume from the one before"
    result.stdout = ""  # it has printed what text it reads
    assert f"norm.weight is not finite: {advice}" in refusal(result)
    newest.unlink()
    assert "resumed after step 5\n" in fork(STEM, 1, *words).stdout


# ---- tokens -----------------------------------------------------------------------------------


def pairs_of(words):
    pairs = Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            pairs[pair] += count
    return pairs


def learned_slowly(text, size):
    """The same pairs, counted anew for each merge."""
    words = Counter(map(tuple, bpe.WORD.findall(text)))
    merges = []
    while len(merges) < size - 256 and (pairs := pairs_of(words)):
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(pair)
        merged = Counter()
        for word, count in words.items():
            merged[tuple(bpe.merge(list(word), pair, 255 + len(merges)))] += count
        words = merged
    return merges


def test_the_most_frequent_pair_is_merged_first(code):
    merges = bpe.learn([code[:2000], code[2000:6000]], 330)
    assert merges == learned_slowly(code[:2000] + b"\n" + code[2000:6000], 330) or merges == learned_slowly(
        code[:6000], 330
    )


def test_every_text_comes_back(code):
    encoder = bpe.Encoder(bpe.learn([code], 600))
    tokens = encoder.encode(code)
    assert encoder.decode(tokens) == code and len(tokens) < len(code) / 2.5
    assert max(tokens) < 600
    draw = random.Random(0)
    for length in range(200):
        data = bytes(draw.choices(b" \n\t\r#a.0_\xc3\xa9\x00\xff", k=length))
        assert encoder.decode(encoder.encode(data)) == data
        assert b"".join(bpe.WORD.findall(data)) == data


def test_the_words_of_code():
    words = [b"    ", b" def", b" forward", b"(self", b",", b" x", b"):\n        ", b"return", b" x", b"\n"]
    assert bpe.WORD.findall(b"".join(words)) == words
    assert bpe.WORD.findall(b"1.25  # a_b") == [b"1", b".", b"2", b"5", b" ", b" #", b" a", b"_b"]


# ---- the text ---------------------------------------------------------------------------------


def read(folder=None, train_size=None, **more):
    return source.read(SimpleNamespace(text=folder, train_size=train_size, test_size=9, length=32, **more))


def test_a_files_name_decides_whether_it_is_held_out():
    train, held_out = read()
    assert len(train) > 1500 and 0.03 < len(held_out) / len(train) < 0.07
    for files, is_held_out in ((train, False), (held_out, True)):
        for name in files:
            first = hashlib.sha256(name.encode()).digest()[0]
            assert first <= 12 if is_held_out else first >= 12, name
            assert not name.startswith(("testing/", "_vendor/", "version.py"))
    few, _ = read(train_size=90)
    assert 1 <= len(few) < 20 and few.items() <= train.items()


def test_the_fingerprint_changes_with_a_byte_and_with_a_name():
    train, held_out = {"a": b"text", "b": b"more"}, {"c": b"held"}
    found = {source.fingerprint(train, held_out)}
    found.add(source.fingerprint(train | {"b": b"mOre"}, held_out))
    found.add(source.fingerprint({"a": b"textb", "b": b"ore"}, held_out))
    found.add(source.fingerprint({"a": b"text", "d": b"more"}, held_out))
    assert len(found) == 4


def test_a_folder_of_ones_own(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "deep/text.md").write_bytes(b"one\r\ntwo")
    train, held_out = read(tmp_path)
    assert {**train, **held_out} == {"deep/text.md": b"one\ntwo"}


def test_windows_and_what_follows():
    data = source.windows(torch.arange(10, dtype=torch.int32), 3)
    assert data.images.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert data.labels.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert len(source.windows(torch.arange(3), 3)) == 0


# ---- the model and the optimizer --------------------------------------------------------------


@pytest.fixture
def model():
    torch.manual_seed(0)
    return gpt.GPT(300, 32, 4, 2).double()


@torch.no_grad()
def test_no_position_sees_what_comes_later(model):
    texts = torch.randint(300, (2, 20))
    other = texts.clone()
    other[:, 12] = (other[:, 12] + 1) % 300
    change = (model(texts) - model(other)).abs().amax(dim=(0, 2))
    assert change[:12].max() == 0 and change[12:].min() > 0


def test_rope_knows_only_distances():
    table = gpt.angles(30, 8, "cpu")
    cosine, sine = table.cos(), table.sin()
    query, key = torch.randn(2, 8, dtype=torch.float64)
    queries = gpt.rotate(query.expand(30, 8), cosine, sine)
    products = queries @ gpt.rotate(key.expand(30, 8), cosine, sine).T
    for distance in (-7, 0, 11):
        values = products.diagonal(distance)
        assert (values - values[0]).abs().max() < 1e-12
    assert (products.diagonal(0)[0] - products.diagonal(1)[0]).abs() > 1e-3


def test_ddp_has_no_buffers_to_send(model):
    assert list(model.buffers()) == []


def test_flops_are_those_that_pytorch_counts(model):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(torch.randint(300, (1, 16))).sum().backward()
    products = 12 * 2 * 32 * 16  # of attention, which it does not count on a CPU
    counted = counter.get_total_flops() / 16
    assert gpt.flops_per_token(model, 16) - products == pytest.approx(counted, rel=0.01)


def test_only_matrices_decay(model):
    optimizer = language_model.make_optimizer(model, SimpleNamespace(lr=0.1))
    decays = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            decays[id(weight)] = group["weight_decay"]
    assert len(decays) == len(list(model.parameters()))
    for name, weight in model.named_parameters():
        assert decays[id(weight)] == (0.0 if "norm" in name else 0.1), name


def test_the_learning_rate_rises_and_falls():
    share = language_model.warm_up_and_cosine(10, 110)
    rises = [share(step) for step in (0, 4, 9, 10)]
    assert rises == [0.1, 0.5, 1, 1]
    assert share(60) == pytest.approx(0.55) and share(110) == pytest.approx(0.1)
    for step in range(10, 110):
        assert share(step) > share(step + 1), step


def test_the_first_losses_are_those_of_guessing(model):
    """A model that knows nothing gives all tokens the same chance."""
    scores = model(torch.randint(300, (4, 20))).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(scores, torch.randint(300, (80,)))
    assert loss.item() == pytest.approx(torch.tensor(300.0).log().item(), rel=0.02)
