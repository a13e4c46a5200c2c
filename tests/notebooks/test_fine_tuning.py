"""What the notebook on fine-tuning stands on: who reads the file, who holds what, what stays frozen."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import launcher
import lessons
import workload

sys.path.insert(0, str(launcher.ROOT / "notebooks"))
sys.path.insert(0, str(launcher.ROOT / "notebooks/show/inside"))
from show.folders import INSIDE
from show.processes import ranks

(ROW,) = (row for row in lessons.NOTEBOOKS if row.stem == "09a_fine_tuning")
pytestmark = pytest.mark.skipif(
    find_spec("safetensors") is None, reason=f"needs {ROW.needs.split()[-1]}: make tools installs it"
)
RUNS = {
    "ddp": {"how": "ddp", "frozen": True, "eval_body": True, "epochs": 2},
    "fsdp": {"how": "fsdp", "frozen": True, "eval_body": True, "epochs": 2},
    "train mode": {"how": "ddp", "frozen": True, "epochs": 1},
    "late": {"how": "late"},
}
WAYS = ("rank 0 reads", "tensor by tensor")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Not the weights and running statistics that a model begins with: those would need no file."""
    import fine_tuning
    from safetensors.torch import save_file

    torch.manual_seed(9)
    model = fine_tuning.Classifier(answers=10)
    with torch.no_grad():
        for _ in range(3):
            model(workload.draw_digits(60, seed=5).images)
    weights = {name.replace("body", "encoder"): value for name, value in model.state_dict().items()}
    weights = {name.replace("head", "classifier"): value for name, value in weights.items()}
    folder = tmp_path_factory.mktemp("fine_tuning")
    (folder / "small/0").mkdir(parents=True)  # and none for rank 1
    save_file(weights, folder / "small/0/weights.safetensors")
    return folder


@pytest.fixture(scope="module")
def found(theirs):
    """What two processes say of all runs and ways: {name: (rank 0, rank 1)}, and the hashes of the files."""
    import fine_tuning
    from safetensors.torch import save_file

    large = {f"{number}.weight": torch.randn(2048, 2048) for number in range(8)}
    (theirs / "large/0").mkdir(parents=True)
    save_file(large, theirs / "large/0/weights.safetensors")
    asked = [run | {"disks": f"{theirs}/small"} for run in RUNS.values()]
    asked += [{"way": way, "disks": f"{theirs}/large"} for way in WAYS]
    environment = {"RUNS": json.dumps(asked), "MALLOC_MMAP_THRESHOLD_": 1_000_000, "CUDA_VISIBLE_DEVICES": ""}
    script = shutil.copy(INSIDE / "fine_tuning.py", theirs)
    said = [rank.result for rank in ranks(script, 2, limit=200, environment=environment)]
    shutil.rmtree(theirs / "large")
    small = fine_tuning.read(theirs / "small/0/weights.safetensors")
    hashes = [{name: fine_tuning.fingerprint(value) for name, value in one.items()} for one in (small, large)]
    return dict(zip((*RUNS, *WAYS), zip(*said, strict=True), strict=True)), *hashes


@pytest.mark.long
def test_all_have_the_weights_of_the_file_that_rank_0_alone_has(found):
    by_name, small, large = found
    for name in (*RUNS, *WAYS):
        assert [rank["has the file"] for rank in by_name[name]] == [True, False]
    for name in ("ddp", "fsdp"):
        assert all(rank["start"] == small for rank in by_name[name]), name
    for way in WAYS:
        assert all(rank["end"] == large for rank in by_name[way]), way


@pytest.mark.long
def test_only_the_head_trains_and_the_optimizer_knows_only_the_head(found):
    by_name, small, _ = found
    head = 576 * 2 + 2
    for name, share in (("ddp", 1), ("fsdp", 2)):
        for rank in by_name[name]:
            changed = [key for key in small if rank["end"][key] != small[key]]
            assert changed == ["head.weight", "head.bias"], name
            assert rank["optimizer"] == 2 * 4 * head // share and rank["known"] == head
        rows, others = (rank["rows"] for rank in by_name[name])
        assert rows == others
    for row, ddp in zip(by_name["fsdp"][0]["rows"], by_name["ddp"][0]["rows"], strict=True):
        assert row["loss"] == pytest.approx(ddp["loss"], rel=1e-5)
    sent = [by_name[name][1]["sent"] for name in ("ddp", "fsdp")]
    if all(sent):
        assert 4 * head < sent[0] < 4 * head + 2000 < 50_000 < sent[1], "FSDP gathers what is frozen, too"


@pytest.mark.long
def test_a_body_in_train_mode_changes_and_one_that_is_frozen_too_late_is_refused(found):
    by_name, small, _ = found
    end = by_name["train mode"][0]["end"]
    changed = [key for key in small if key.startswith("body") and end[key] != small[key]]
    assert len(changed) == 9 and all("running" in key or "num_batches" in key for key in changed)
    first, second = by_name["late"]
    assert first["error"].startswith("Expected to have finished reduction")
    assert first["gradient"] != second["gradient"]


def test_no_process_holds_more_than_it_must(found):
    """M is the model. Beside the half that stays, one of its eight matrices arrives, or half of one."""
    M = 8 * 2048 * 2048 * 4
    most = {"rank 0 reads": [3 / 2, 1 / 2 + 1 / 8], "tensor by tensor": [9 / 16 + 1 / 8, 9 / 16]}
    for way, expected in most.items():
        peaks = [rank["peak"] for rank in found[0][way]]
        if all(peaks):
            assert [peak / M for peak in peaks] == pytest.approx(expected, abs=0.08), way


@pytest.mark.parametrize("wrong", ["missing", "unexpected"])
def test_a_file_whose_names_do_not_fit_is_an_error(theirs, tmp_path, wrong):
    import fine_tuning
    from safetensors.torch import load_file, save_file

    file = theirs / "small/0/weights.safetensors"
    weights = load_file(file)
    fine_tuning.Classifier(answers=2).load_state_dict(fine_tuning.read(file))
    if wrong == "missing":
        del weights["encoder.5.weight"]
    else:
        weights["encoder.5.bias"] = torch.zeros(32)
    save_file(weights, tmp_path / "x.safetensors")
    with pytest.raises(RuntimeError, match=f"(?i){wrong} key"):
        fine_tuning.Classifier(answers=2).load_state_dict(fine_tuning.read(tmp_path / "x.safetensors"))


def test_without_safetensors_it_says_in_one_line_how_to_install_it():
    code = "import sys; sys.modules['safetensors'] = None; import fine_tuning"
    words = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path}; {code}"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=100)
    needed = ROW.needs.partition(": ")[2]
    assert run.returncode == 2
    assert run.stderr == f"error: this notebook needs safetensors: {needed}\n"
    assert (launcher.ROOT / needed.split()[-1]).exists()
