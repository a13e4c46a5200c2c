"""Older code: what the page quotes is what old scripts say, and the new ones have lesson 01's curve."""

import argparse
import pickle
import re
import shlex
import sys

import pytest
import torch
from torch import nn

import workload
from tests.helpers.lines import check_curve, column, is_like
from tests.helpers.outcomes import recount
from tools import diffs, launcher

FOLDER = diffs.OLDER
PAGE = FOLDER / "README.md"
# 1,055 images lack one to a full batch, 997 make uneven shares; with this learning rate 20 steps learn much.
OPTIONS = "--train-size 1055 --batch-size 96 --test-size 997 --epochs 2 --seed 3 --lr 0.3"
SIZES = tuple(OPTIONS.split())
TINY = ("--train-size", 96, "--batch-size", 48, "--test-size", 20, "--epochs", 1)
PARAMETERS = 32_282
QUIET = '"""\n\nimport warnings\n\nwarnings.simplefilter("ignore")\n'


def said(text):
    """Words as they are on the page: in one line, without marks around code."""
    return " ".join(text.split())


def quoted(words):
    """The page has these words, in a block of what was seen."""
    seen = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S)
    return any(said(words) in said(block) for block in seen)


@pytest.fixture
def old(forked, tmp_path):
    """Run a script to its end, with changes: pairs of what is there and what shall be."""

    def old(script, processes, *arguments, changes=(), folder="run", quiet=True, fails=False):
        text = (FOLDER / f"{script}.py").read_text()
        for right, wrong in changes:
            assert right in text, right
            text = text.replace(right, wrong)
        if quiet:  # what is old warns, and the fork server takes a warning for an error
            text = text.replace('"""\n\nimport ', f"{QUIET}import ", 1)
        path = tmp_path / folder / f"{script}.py"
        path.parent.mkdir()
        path.write_text(text)
        words, _ = launcher.command("04_ddp_torchrun", processes, *arguments, script=path)
        result = forked(words, folder=folder)
        assert (result.code != 0) == fails, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result

    return old


def check_same(result, script, expected):
    curve = check_curve(result.out, script, expected)
    assert column(curve, "accuracy") == column(expected, "accuracy")
    return curve


def wrong(result):
    """The errors of a run, each once."""
    return set(re.findall(r"^(?:\S+ .*api.py:\d+\] |\[rank\d+\]: )?(\w*Error: .*?)$", result.stderr, re.M))


# ---- what old lines run into, and what they compute where they are mended

SHUFFLE = ("shuffle=True, ", "")
DEVICES = (", device_ids=[arguments.local_rank], output_device=arguments.local_rank", "")
GLOO = "<class 'torch.distributed.distributed_c10d.ProcessGroupGloo'>"
BETWEEN = (  # names between Apex's and today's
    ("torch.autocast(device.type, dtype)", "torch.cuda.amp.autocast()"),
    ("torch.amp.GradScaler(device.type)", "torch.cuda.amp.GradScaler()"),
)
CONVERT = ('device.type != "cpu"', "True")
NO_DEVICE = ("        device_id=device,\n", "")
TO_CPU = ('offload_to_cpu=device.type != "cpu"', "offload_to_cpu=True")
SIZE = "sizes [400], strides [1], storage offset 0, and itemsize 4 requiring a storage size of 1600"
IDS, DEVICE = "device_ids and output_device arguments", "non-CPU accelerator device"
# (script, changes, options, the error that it ends with)
ERRORS = [
    ("local_rank", (), (), "ValueError: sampler option is mutually exclusive with shuffle"),
    ("local_rank", (SHUFFLE,), (), f"ValueError: DistributedDataParallel {IDS} only work ..."),
    ("sync_batch_norm", (CONVERT,), (), "ValueError: SyncBatchNorm layers only work with GPU modules"),
    ("apex_amp", (), (), "ModuleNotFoundError: No module named 'apex'"),
    ("horovod_ddp", (), (), "ModuleNotFoundError: No module named 'horovod'"),
]
OF_FSDP = [
    ("fsdp1", (), ("--offload",), "RuntimeError: Cannot access accelerator device when none is available."),
    ("fsdp1", (NO_DEVICE,), (), f"RuntimeError: FSDP needs a {DEVICE}, but no accelerator device ..."),
    ("fsdp1", (TO_CPU,), (), f"RuntimeError: setStorage: {SIZE} are out of bounds for storage of size 0"),
]
ERRORS += [pytest.param(*row, marks=pytest.mark.long) for row in OF_FSDP]
WARNINGS = [
    ("autocast", BETWEEN, "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated"),
    ("fsdp1", (), "FSDP.state_dict_type() and FSDP.set_state_dict_type() are being deprecated."),
    ("parameter_server", (), f"UserWarning: You are using a Backend {GLOO} as a ProcessGroup."),
]


@pytest.mark.parametrize(("script", "changes", "options", "error"), ERRORS)
def test_what_an_old_line_runs_into(old, script, changes, options, error):
    result = old(script, 2, *TINY, *options, changes=changes, fails=True)
    assert any(is_like(line, error) for line in wrong(result)), wrong(result)
    assert quoted(error.removesuffix(" ..."))


@pytest.mark.long
@pytest.mark.parametrize(("script", "changes", "warning"), WARNINGS)
def test_what_old_names_warn_of(old, script, changes, warning):
    assert warning in said(old(script, 2, *TINY, changes=changes, quiet=False, fails=True).stderr)
    assert quoted(warning)


MENDED = {"local_rank": ((SHUFFLE, DEVICES), ()), "autocast": (BETWEEN, ()), "fsdp2": ((), ("--offload",))}


@pytest.mark.long
@pytest.mark.parametrize("script", MENDED)
def test_without_a_gpu_it_has_lesson_01s_curve(old, reference, script):
    """local_rank.py once it is mended, in 32 bits under the names in between, and with FSDP2's offloading."""
    changes, options = MENDED[script]
    check_same(old(script, 2, *SIZES, *options, changes=changes), script, reference(*SIZES))


def test_the_old_launcher_hands_over_an_argument_of_another_name(start):
    words = shlex.split(diffs.command(FOLDER / "local_rank.py"))
    words[0], words[-1] = sys.executable, str(FOLDER / "local_rank.py")
    words[3:3] = ["--master_port", "0"]
    result = start("local_rank", words=words, environment={"PYTHONWARNINGS": ""}).finish()
    assert result.code != 0
    error = "error: unrecognized arguments: --local-rank=0"
    assert error in result.stderr
    assert quoted(error)
    module = "torch.distributed.launch"
    warning = f"FutureWarning: The module {module} is deprecated and will be removed in future."
    assert warning in said(result.stderr)
    assert quoted(warning)


def test_torchrun_hands_over_none_and_all_take_device_0(old):
    result = old("local_rank", 2, *TINY, fails=True)
    assert sorted(result.stdout.splitlines()) == ["rank 0 takes device 0", "rank 1 takes device 0"]
    assert quoted("rank 1 takes device 0")


# ---- batch norm


@pytest.mark.long
def test_batch_norm_depends_on_the_number_of_processes_until_it_is_converted(old):
    alone = launcher.read_curve(old("batch_norm", 1, *SIZES, folder="alone").out, "batch_norm")
    apart = launcher.read_curve(old("batch_norm", 2, *SIZES, folder="apart").out, "batch_norm")
    assert launcher.difference(apart, alone) != ""
    for processes in (1, 2, 3):
        result = old("sync_batch_norm", processes, *SIZES, folder=f"{processes}")
        check_same(result, "sync_batch_norm", alone)


# ---- 16 bits


def test_autocast_and_its_scaler_have_lesson_01s_curve(old, reference):
    result = old("autocast", 2, *SIZES, quiet=False)
    limits = launcher.lessons.get("07_mixed_precision").curve
    curve = check_curve(result.out, "autocast", reference(*SIZES), limits=limits)
    assert launcher.difference(curve, reference(*SIZES)) != "", "not in 16 bits"


# ---- FSDP


@pytest.mark.quick("fsdp1-2", "fsdp2-2")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("script", ["fsdp1", "fsdp2"])
def test_both_fsdps_have_lesson_01s_curve(old, reference, script, processes):
    result = old(script, processes, *SIZES, quiet=script == "fsdp1")
    curve = check_same(result, script, reference(*SIZES))
    assert curve[-1]["accuracy"] == recount(result.out / f"{script}.pt", 997)


def test_a_checkpoint_with_more_than_weights_is_refused_and_then_loaded(tmp_path):
    weights = nn.DataParallel(workload.ConvNet((1, 28, 28))).state_dict()
    torch.save({"model": weights, "arguments": argparse.Namespace(lr=0.1)}, tmp_path / "old.pt")
    with pytest.raises(pickle.UnpicklingError) as refused:
        torch.load(tmp_path / "old.pt")
    first, second, *_ = PAGE.read_text().split("UnpicklingError: ")[1].splitlines()
    assert said(first) in said(str(refused.value)) and said(second) in said(str(refused.value))
    with torch.serialization.safe_globals([argparse.Namespace]):
        weights = torch.load(tmp_path / "old.pt")["model"]
    model = workload.ConvNet((1, 28, 28))
    with pytest.raises(RuntimeError) as refused:
        model.load_state_dict(weights)
    seen = said(str(refused.value))
    for which, name in (("Missing", "1.weight"), ("Unexpected", "module.1.weight")):
        words = f'{which} key(s) in state_dict: "{name}",'
        assert words in seen and quoted(words)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, "module.")
    assert str(model.load_state_dict(weights)) == "<All keys matched successfully>"


@pytest.mark.long
def test_who_skips_a_step_when_one_shard_overflows(run):
    probe = launcher.ROOT / "tests/probes/inf_on_one_rank.py"
    words, _ = launcher.command("04_ddp_torchrun", 2, script=probe)
    environment = {"PYTHONPATH": str(launcher.ROOT / "lessons")}
    stdout = run("probe", words=words, environment=environment).stdout
    assert stdout.splitlines() == [
        "FSDP1 with GradScaler: ranks that skip [1]",
        "FSDP1 with ShardedGradScaler: ranks that skip [0, 1]",
        "fully_shard with GradScaler: ranks that skip [0, 1]",
    ]
    assert quoted(stdout)


# ---- parameter server


@pytest.mark.long("2")
@pytest.mark.night
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_parameter_server_has_lesson_01s_curve_and_carries_all_bytes(old, reference, workers):
    result = old("parameter_server", workers + 1, *SIZES)
    check_same(result, "parameter_server", reference(*SIZES))
    size = workers * 2 * 4 * PARAMETERS
    last = result.stdout.splitlines()[-1]
    assert last == f"{workers} workers | each step, bytes through rank 0: {size:,}"
    assert quoted(last)


# ---- hogwild

HOGWILD = ("--train-size", "1200", "--test-size", "400", "--epochs", "3", "--batch-size", "20")


def accuracies(forked, script, folder):
    result = forked([sys.executable, script, *HOGWILD], folder=folder)
    assert result.code == 0, result.stderr
    return re.fullmatch(r"accuracy before (\S+)%, after (\S+)%\n", result.stdout).groups()


@pytest.mark.night
def test_hogwild_trains_the_weights_that_the_processes_share(forked, tmp_path):
    before, after = map(float, accuracies(forked, FOLDER / "hogwild.py", "shared"))
    assert before < 20 and after > 2 * before
    text = (FOLDER / "hogwild.py").read_text()
    text = text.replace("str(Path(__file__).resolve().parent.parent)", repr(str(FOLDER.parent)))
    assert text.count("    model.share_memory()") == 1
    (tmp_path / "copies.py").write_text(text.replace("    model.share_memory()", "    pass"))
    before, after = accuracies(forked, tmp_path / "copies.py", "copies")
    assert after == before


# ---- wrappers and samplers


def test_a_sampler_yields_indices():
    sampler = torch.utils.data.DistributedSampler(range(4), num_replicas=2, rank=0)
    with pytest.raises(TypeError) as error:
        for _images, _labels in sampler:
            pass
    assert quoted(f"TypeError: {error.value}")


TWO_WRAPPERS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2,))
model = fully_shard(DistributedDataParallel(torch.nn.Linear(8, 8)), mesh=mesh)
model(torch.randn(4, 8)).sum().backward()
print("trained", type(model.module.weight.grad).__name__, flush=True)
DistributedDataParallel(fully_shard(torch.nn.Linear(8, 8), mesh=mesh))
"""


@pytest.mark.long
def test_sharding_a_ddp_model_runs_and_the_other_order_is_refused(forked, tmp_path):
    (tmp_path / "both.py").write_text(TWO_WRAPPERS)
    result = forked(["torchrun", "--standalone", "--nproc-per-node", "2", tmp_path / "both.py"])
    assert result.stdout == "trained DTensor\n" * 2, result.stderr
    operator = "Operator c10d.broadcast_.default"
    error = f"NotImplementedError: {operator} does not have a sharding strategy registered."
    assert error in said(result.stderr)
    assert quoted(error)


# ---- the page


def test_every_script_is_on_the_page():
    for path in FOLDER.glob("*.py"):
        assert f"({path.name})" in PAGE.read_text(), path
