"""The port of a whole script on the page "Your own script": it keeps what the lessons promise."""

import os
import re
import sys

import pytest
import torch

from tests.helpers.patches import patched
from tools import diffs, launcher
from tools.testbed import pretending

FOLDER = launcher.ROOT / "lessons/port"
PAGE = launcher.ROOT / "lessons/pages/port.md"
# For each script: a short run, what it saves, and what makes it the same on any number of processes.
SCRIPTS = {
    "after": (
        ("--epochs", 2, "--workers", 1),
        "checkpoint.pt",
        ("--no-augment", "--dropout", 0, "--workers", 0),
    ),
    "after_iterations": (("--iterations", 50), "iterations.pt", ("--dropout", 0)),
}
BOTH = pytest.mark.parametrize("name", SCRIPTS)
RESTARTS = "05_snapshots"  # the lesson that is started by the same command
# On the last rank, in the middle of the second epoch.
KILLED = """
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == world_size - 1 and {where}:
        os.write(2, b"about to be killed\\n")
        os.kill(os.getpid(), 9)
"""


def weights(result, name):
    return torch.load(result.out / "port" / SCRIPTS[name][1], map_location="cpu")["model"]


def command(script, processes, *arguments):
    return launcher.command(RESTARTS, processes, *arguments, script=script)


def copied(folder, name, old, new):
    """A copy of a script with a change."""
    text = (FOLDER / f"{name}.py").read_text()
    assert text.count(old) == 1
    (folder / f"{name}.py").write_text(text.replace(old, new))
    (folder / "batch_norm.py").write_text((FOLDER / "batch_norm.py").read_text())
    return folder / f"{name}.py"


def in_64_bits(folder, name):
    return copied(folder, name, "\nargs = ", "\ntorch.set_default_dtype(torch.float64)\nargs = ")


@BOTH
def test_the_diff_on_the_page_turns_a_script_into_its_port(tmp_path, name):
    before, after = FOLDER / f"{name.replace('after', 'before')}.py", FOLDER / f"{name}.py"
    block = PAGE.read_text().split(f"<!-- {name}: ")[1].split(f"<!-- end of {name} -->")[0]
    text = "".join(re.findall(r"```diff\n(.*?)```", block, re.S))
    assert patched(before.read_text(), text, tmp_path) == after.read_text()


@BOTH
def test_the_script_before_learns_and_goes_on(forked, name):
    before = FOLDER / f"{name.replace('after', 'before')}.py"
    words = [sys.executable, before, *SCRIPTS[name][0]]
    whole = forked(words)
    again = forked([*words, "--resume"])
    assert whole.code == again.code == 0, whole.stderr + again.stderr
    losses = re.findall(r"(?:\d \| loss|\d \| val) ([\d.]+)", whole.stdout)
    assert losses == sorted(losses, reverse=True) and len(losses) == 2
    assert not re.search(" val ", again.stdout), "nothing is left to do"


@pytest.mark.quick("after_iterations")
@pytest.mark.long("after")
@BOTH
def test_the_weights_are_the_same_on_1_2_and_4_processes(forked, tmp_path, name):
    """In 64 bits, without what each rank draws for itself: dropout and augmentation."""
    options, _, same = SCRIPTS[name]
    script = in_64_bits(tmp_path, name)
    found = {}
    for processes in (1, 2, 4):
        words, environment = command(script, processes, *options, *same)
        result = forked(words, environment, folder=str(processes))
        assert result.code == 0, result.stderr
        found[processes] = weights(result, name)
    for processes in (2, 4):
        for part, expected in found[1].items():
            torch.testing.assert_close(found[processes][part], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.long
@BOTH
def test_a_killed_run_ends_with_the_bytes_of_one_that_was_not(forked, tmp_path, name):
    """On three processes, where the order of a sum matters."""
    options, file, _ = SCRIPTS[name]
    where = "epoch == 2 and seen > 500" if name == "after" else "iteration == 35"
    step = "            optimizer.step()\n" if name == "after" else "        optimizer.step()\n"
    indent = step[: -len(step.lstrip())]
    killed = re.sub("(?m)^    ", indent, KILLED.format(where=where).lstrip("\n"))
    script = copied(tmp_path, name, step, step + killed)
    files = {}
    for folder, path in (("whole", FOLDER / script.name), ("killed", script)):
        words, environment = command(path, 3, *options, "--resume")
        result = forked(words, environment, folder=folder)
        assert result.code == 0, result.stderr
        files[folder] = (result.out / "port" / file).read_bytes()
    # torchrun may name another process instead, which failed in the same second because this one was gone.
    assert "about to be killed" in result.stderr and "failed (exitcode: " in result.stderr
    assert files["killed"] == files["whole"]
    words, environment = command(path, 3, *options, "--resume")
    assert forked(words, environment, folder="killed").code == 0, "nothing is left to do"


@pytest.mark.long("after")
@pytest.mark.night
@BOTH
def test_two_launchers_end_with_the_bytes_of_one(start, name):
    """Each by the command that a reader types, and no process leaves a thread behind: see conftest.py."""
    options, file, same = SCRIPTS[name]
    options += same  # workers need sockets, and their paths would be too long here
    words, environment = command(FOLDER / f"{name}.py", 2, *options, "--resume")
    documented = diffs.command(FOLDER / f"{name}.py").replace("\\\n", " ").split()
    assert [*documented[1:-2], *words[-len(options) - 2 :]] == ["torchrun", *words[1:]]
    one = start(None, words=words, environment=environment, folder="one").finish()
    words, environment = launcher.command("06_multinode", 2, *options, "--resume")
    environment["SCRIPT"] = str(FOLDER / f"{name}.py")
    two = start(None, words=words, environment=environment, folder="two").finish()
    assert one.code == two.code == 0, one.stderr + two.stderr
    assert two.stdout.count("node 0 | ") == len(two.stdout.splitlines()), "only rank 0 prints"
    assert (one.out / "port" / file).read_bytes() == (two.out / "port" / file).read_bytes()


METHOD = "import multiprocessing\nmultiprocessing.set_start_method({!r})\n"
GUARD = 'if __name__ == "__main__":  # workers of the loaders may import this file again\n    main()\n'


@pytest.fixture(params=["spawn", "forkserver"])
def workers_import(request, tmp_path, monkeypatch):
    """Start the workers of a loader as macOS does, or as Linux does from Python 3.14 on."""
    folder = tmp_path / "method"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(METHOD.format(request.param))
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


@pytest.mark.long("spawn-after")
@pytest.mark.night
@pytest.mark.parametrize("name", ["before", "after"])
def test_workers_that_import_the_script_again_do_no_harm(start, workers_import, name):
    words, environment = command(FOLDER / f"{name}.py", 2, "--epochs", 1, "--workers", 1)
    if name == "before":
        words = [sys.executable, *words[words.index(str(FOLDER / "before.py")) :]]
    run = start(None, words=words, environment=environment | workers_import)
    result = run.finish(300)
    assert result.code == 0 and result.stdout.count("epoch 1 |") == 1, result.stderr


@pytest.mark.night
def test_without_a_guard_they_join_the_group(start, workers_import, tmp_path):
    script = copied(tmp_path, "after", GUARD, "main()\n")
    words, environment = command(script, 2, "--epochs", 1, "--workers", 1)
    run = start(None, words=words, environment=environment | workers_import)
    with pytest.raises(pytest.fail.Exception, match="still running after 60 seconds"):
        run.finish(60)


@pytest.mark.long
@pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing())
@BOTH
def test_gpus_are_used_by_the_same_lines(forked, tmp_path, name):
    options, _, same = SCRIPTS[name]
    words, environment = launcher.command(
        "04_ddp_torchrun", 2, *options, *same, script=in_64_bits(tmp_path, name)
    )
    environment["PYTHONWARNINGS"] = "default"  # barrier says that it uses the current device
    found = {}
    for gpus in (0, 2):
        result = forked(words, environment, folder=str(gpus), gpus=gpus)
        assert result.code == 0, result.stderr
        found[gpus] = weights(result, name)
    for part, expected in found[0].items():
        torch.testing.assert_close(found[2][part], expected, rtol=1e-9, atol=1e-9)


def test_batch_norm_of_all_processes_takes_what_batch_norm_takes(forked):
    """Without affine, momentum or running statistics, and in 16 bits."""
    words, _ = launcher.command("04_ddp_torchrun", 2, script=launcher.ROOT / "tests/probes/norms.py")
    result = forked(words)
    assert result.code == 0, result.stderr


TO_PORT = """
import torch
torch.manual_seed(0)
inputs = torch.randn(48, 3)
train_set = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
batch_size, seed, epochs, model, loss_function = 8, 0, 3, torch.nn.Linear(3, 1), torch.nn.functional.mse_loss
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""


def test_the_ten_lines_train_the_same_model_on_1_and_2_processes(forked, tmp_path):
    text = PAGE.read_text().partition("\n## The ten lines\n")[2]
    lines = re.search(r"(?s)```python\n(.*?)```", text)[1]
    assert re.findall(r"  # (\d+)", lines) == list(map(str, range(1, 11)))
    script = tmp_path / "my.py"
    script.write_text(TO_PORT + lines)
    found = []
    for processes in (1, 2):
        words, _ = launcher.command("04_ddp_torchrun", processes, script=script)
        result = forked(words, folder=str(processes))
        assert result.code == 0, result.stderr
        found.append(torch.load(tmp_path / str(processes) / "weights.pt"))
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name])
