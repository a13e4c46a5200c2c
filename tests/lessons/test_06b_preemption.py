"""Lesson 06b's promises, one by one: what is refused, what a full disk costs, and how a run ends."""

import ast
import fcntl
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parts import snapshot
from tests.helpers.changed_lessons import lesson_with_a_bug
from tests.helpers.lines import refusal
from tools import launcher, lessons
from tools.testbed import pretending
from tools.testbed.processes import cpu_seconds, trained, wait_for

STEM = "06b_preemption"
WEIGHTS = torch.randn(900, generator=torch.Generator().manual_seed(0))
SMALL = ("--train-size", 480, "--test-size", 20, "--batch-size", 24, "--epochs", 3)
needs_gpus = pytest.mark.skipif(bool(pretending.missing(2)), reason=pretending.missing(2))


def snapshots(out):
    return sorted(out.glob(f"{STEM}.epoch*.snapshot"))


def forged(data):
    """Any bytes, with the checksum that they should have."""
    return data + zlib.crc32(data).to_bytes(4, "big")


def saved(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return forged(buffer.getvalue())


class Hostile:
    """A pickle that leaves a mark when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch was-here",)


# ---- what is refused --------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A run of this process only, with two snapshots in its folder."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(snapshot, "listen_for_the_end", lambda told: None)  # pytest wants to hear it
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    snapshots = snapshot.Snapshots(tmp_path / "out", STEM, {"lr": 0.1}, time_limit=10)
    state = {"settings": {"lr": 0.1}, "step": 0, "model": WEIGHTS}
    for epoch in (2, 3):
        snapshots.path_of(epoch, 0).write_bytes(snapshot.seal(state | {"epoch": epoch}))
    yield snapshots
    if snapshots.control is not None:  # the test has not closed it
        snapshots.close()
    dist.destroy_process_group()


def check_refused(alone, capfd, data):
    """The newest snapshot with these bytes in it: refused with one line; the one before is what comes."""
    newest = alone.path_of(3, 0)
    newest.write_bytes(data)
    state = alone.find_newest()
    assert state["epoch"] == 2
    assert torch.equal(state["model"], WEIGHTS)
    line = f"refused {newest}: damaged, or not a snapshot of this kind; taking the one before\n"
    assert capfd.readouterr().err == line
    assert not newest.exists()


@pytest.mark.parametrize("name", ["parts/snapshot.py", "port/batch_norm.py", "launch/preflight.py"])
def test_the_files_to_copy_run_on_python_3_10(name):
    """torch 2.13 supports it. There, what turns a number into bytes must be told the order of the bytes."""
    tree = ast.parse((lessons.ROOT / "lessons" / name).read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("to_bytes", "from_bytes"):
            assert len(node.args) == 2, f"line {node.lineno}"


def test_a_damaged_snapshot_is_refused(alone, capfd):
    """Cut anywhere, or with one bit flipped, also in the checksum itself."""
    whole, chance = alone.path_of(3, 0).read_bytes(), random.Random(0)
    size = len(whole)
    for length in [0, 1, 3, 4, 5, size - 1, *(chance.randrange(size) for _ in range(50))]:
        check_refused(alone, capfd, whole[:length])
    for bit in [*range(8 * size - 32, 8 * size), *(chance.randrange(8 * size) for _ in range(300))]:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        check_refused(alone, capfd, bytes(flipped))


def test_a_foreign_file_is_refused_and_runs_no_code(alone, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    hostile = {"epoch": 9, "step": 0, "settings": {}, "processes": [Hostile()]}
    for thing in (hostile, [1, 2, 3], {"weight": torch.zeros(3)}):
        check_refused(alone, capfd, saved(thing))
    check_refused(alone, capfd, forged(b""))
    assert not Path("was-here").exists()


def test_a_run_takes_the_snapshot_before_or_starts_anew_and_ends_with_the_same_bytes(fork):
    sizes = (*SMALL, "--snapshot-every", 8)
    out = fork(STEM, 2, *sizes).out
    weights, (_, newest) = (out / f"{STEM}.pt").read_bytes(), snapshots(out)
    assert newest.name == f"{STEM}.epoch0003-step000000016.snapshot"
    newest.write_bytes(newest.read_bytes()[:-100])
    again = fork(STEM, 2, *sizes)
    lines = [line for line in again.stderr.splitlines() if "refused" in line]
    assert lines == [
        f"refused out/{newest.name}: damaged, or not a snapshot of this kind; taking the one before"
    ]
    assert "resumed in epoch 3 after step 8\n" in again.stdout
    assert (out / f"{STEM}.pt").read_bytes() == weights
    for path in snapshots(out):
        path.write_bytes(b"gone")
    anew = fork(STEM, 2, *SMALL)
    assert anew.stderr.count("refused out/") == 2
    assert "resumed" not in anew.stdout
    assert (out / f"{STEM}.pt").read_bytes() == weights
    assert len(list(out.glob("*.refused"))) == 3  # the damaged one, too


def test_a_snapshot_of_other_settings_or_of_another_model_is_refused(fork):
    out = fork(STEM, 2, *SMALL).out
    before = {path.name: path.read_bytes() for path in snapshots(out)}
    again = fork(STEM, 2, *SMALL)  # with the same ones, from the last step of the last epoch
    assert "resumed in epoch 3 after step 20\n" in again.stdout
    # Nothing else, for example no warning that the scheduler is stepped before the optimizer.
    assert again.stderr == f"nothing is left to train: to start over, remove out/{STEM}.*\n"
    newest = f"out/{STEM}.epoch0003-step000000020.snapshot"
    line = refusal(fork(STEM, 2, *SMALL, "--lr", 0.1, "--seed", 1, refused=True))
    assert line == f"error: {newest} has lr 0.04, not 0.1; seed 0, not 1: remove it, or name another folder"
    # A model of another size is another setting.
    path = snapshots(out)[-1]
    state = torch.load(io.BytesIO(path.read_bytes()[:-4]), weights_only=True)
    assert re.fullmatch(r"ConvNet of 32,282 parameters \([0-9a-f]{8}\)", state["settings"]["model"])
    assert {path.name: path.read_bytes() for path in snapshots(out)} == before


# ---- disks ------------------------------------------------------------------------------------


# Root needs no user namespace to mount something where nobody else sees it.
USER = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
UNSHARE = ["unshare", *USER, "--mount"]


def can_mount():
    words = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") and subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.quick("full")
@pytest.mark.night
@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_that_fills_up_or_becomes_read_only_costs_no_snapshot(start, tmp_path, trouble):
    """OUT is a small disk of its own. Once it has two snapshots nothing more can be written, for a while."""
    disk = tmp_path / "run/out"
    disk.mkdir(parents=True)
    words, environment = launcher.command(STEM, 2, *SMALL[:-1], 100000, "--snapshot-every", 5)
    script = 'mount -t tmpfs -o size=2m none out && exec "$@"'
    words = [*UNSHARE, "bash", "-c", script, "bash", *words]
    run = start(STEM, words=words, environment=environment)
    root = Path(f"/proc/{run.process.pid}/root") / disk.relative_to("/")
    wait_for(lambda: len(snapshots(root)) == 2)
    inside = ["nsenter", "--target", str(run.process.pid), "--mount"]
    inside += ["--user", "--preserve-credentials"] if USER else []
    if trouble == "full":
        break_it, mend_it = f"cat /dev/zero > {disk}/filler; true", f"rm {disk}/filler"
        reason = "No space left on device"
    else:
        # A disk with open files does not turn read-only. A second view of it does.
        break_it, mend_it = f"mount --bind {disk} {disk} && mount -o remount,bind,ro {disk}", f"umount {disk}"
        reason = "Read-only file system"
    subprocess.run([*inside, "sh", "-c", break_it], check=True, stderr=subprocess.DEVNULL)
    wait_for(lambda: run.stderr().count(f"is not saved ({reason}); going on without it") >= 3)
    kept = snapshots(root)
    for path in kept:
        data = path.read_bytes()
        assert zlib.crc32(data[:-4]).to_bytes(4, "big") == data[-4:]
    # A save that was under way as the disk became read-only cannot tidy up after itself.
    if trouble == "full":
        assert len(kept) == 2
        assert not list(root.glob("*.temporary"))
        # The curve needs room too. That it has none must not end the run.
        words = rf"{STEM}.jsonl lacks epoch \d+ \({reason}\); going on"
        wait_for(lambda: re.search(words, run.stderr()))
    assert len(kept) >= 2
    subprocess.run([*inside, "sh", "-c", mend_it], check=True)
    wait_for(lambda: snapshots(root)[-1].name > kept[-1].name)
    stop(run)


def test_a_snapshot_is_on_the_disk_before_it_takes_its_name(alone, monkeypatch):
    """After a power cut, a file that was renamed before its bytes were written would be empty."""
    path, on_disk, fsync = alone.path_of(3, 1), [], os.fsync

    def note(number):
        (written,) = path.parent.glob("*.temporary")
        assert os.path.samestat(os.fstat(number), written.stat())
        on_disk.append(written.read_bytes())
        assert not path.exists()
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    alone.save({"epoch": 3, "step": 1, "model": WEIGHTS})
    assert on_disk == [path.read_bytes()]
    assert torch.equal(alone.find_newest()["model"], WEIGHTS)
    assert [old.name for old in alone.find_all()] == [path.name, alone.path_of(3, 0).name]


def test_what_could_not_be_read_again_is_not_saved(alone):
    """weights_only refuses it, and after a crash each snapshot would count as damaged."""
    with pytest.raises(TypeError, match="a snapshot can hold tensors, numbers, strings, and dicts and lists"):
        alone.save({"epoch": 3, "step": 1, "data": Path("images")})
    assert len(alone.find_all()) == 2


# ---- how a run ends ---------------------------------------------------------------------------


def stop(run):
    run.process.terminate()
    return run.finish(60)


@pytest.mark.long
def test_sigterm_ends_torchrun_after_a_saved_step_and_the_run_goes_on_from_it(start, fork):
    long = (*SMALL[:-1], 300)
    run = start(STEM, 2, *long, "--snapshot-every", 1000)
    trained(run, STEM)
    result = stop(run)
    assert result.code != 0
    assert result.stderr.count("told to stop: saved, and ending with status 75") == 1
    saved = snapshots(result.out)[-1]
    place = [int(number) for number in re.findall(r"epoch(\d+)-step(\d+)", saved.name)[0]]
    done = len(launcher.read_curve(result.out, STEM))
    assert place[0] == done + 1, "from the end of an epoch, not from the step before the end"
    again = start(STEM, 2, *long)
    assert wait_for(lambda: len(launcher.read_curve(again.out, STEM)) > place[0])
    assert f"resumed in epoch {place[0]} after step {place[1]}\n" in stop(again).stdout


@pytest.mark.quick("15")
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_without_torchrun_ends_with_the_status_for_a_scheduler(start, number):
    """As srun starts it: the process itself is what the scheduler sees."""
    names = ("RANK", "LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    alone = dict.fromkeys(names, "0") | {"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    words = ["env", *(f"{name}={value}" for name, value in alone.items()), sys.executable]
    run = start(STEM, words=[*words, lessons.get(STEM).path, *SMALL[:-1], 3000])
    wait_for(lambda: (run.out / f"{STEM}.jsonl").exists())
    run.process.send_signal(number)
    result = run.finish(60)
    assert result.code == 75
    assert "told to stop: saved, and ending with status 75" in result.stderr
    assert len(snapshots(result.out)) == 2


@pytest.mark.night
def test_a_second_run_in_the_same_folder_is_refused(start):
    first = start(STEM, 2, *SMALL[:-1], 100000)
    trained(first, STEM)
    before = (first.out / f"{STEM}.jsonl").read_text().splitlines()
    words, environment = launcher.command(STEM, 1, *SMALL[:-1], 100000, "--out", first.out)
    words[words.index("--max-restarts") + 1] = "0"  # each waits 5 seconds for the first run to go away
    second = start(STEM, words=words, environment=environment, folder="second").finish(120)
    said = (
        rf"error: {first.out} is in use by process \d+ of \S+, since [\d:]+: end it, or name another folder"
    )
    assert re.fullmatch(said, refusal(second))
    assert first.process.poll() is None
    assert (first.out / f"{STEM}.jsonl").read_text().splitlines()[: len(before)] == before
    stop(first)


def test_a_run_that_is_going_down_is_waited_for(alone):
    alone.close()
    path = alone.folder / f"{STEM}.lock"
    holds = f"import fcntl, time; lock = open({str(path)!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX); "
    holds += "print('another run', file=lock, flush=True); print(flush=True); time.sleep(1)"
    words = [sys.executable, "-S", "-c", holds]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline()
        began = time.monotonic()
        run = snapshot.Snapshots(alone.folder, STEM, {})
        assert 0.5 < time.monotonic() - began < 4
    assert path.read_text().startswith(f"process {os.getpid()} of ")
    run.close()
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it now


@pytest.mark.long
def test_the_console_shows_the_error_of_the_process_that_failed_first(start, tmp_path):
    """Not those of the others, who only lost it; and all end within seconds."""
    script = lesson_with_a_bug(tmp_path, STEM, "rank == 2", "raise ValueError('a bug of rank 2')")
    words, environment = launcher.command(STEM, 4, *SMALL, "--out", tmp_path / "run/out", script=script)
    words[words.index("--max-restarts") + 1] = "0"
    run = start(STEM, words=words, environment=environment)
    wait_for(lambda: "a bug of rank 2" in run.stderr())
    began = time.monotonic()
    result = run.finish(60)
    assert time.monotonic() - began < 15
    assert result.code != 0
    errors = re.findall(r"^\w*(?:Error|Exception): .*", result.stderr, re.M)
    assert errors == ["ValueError: a bug of rank 2"]
    assert "gloo" not in result.stderr
    report = result.stderr.partition("Root Cause (first observed failure):")[2]
    assert "rank      : 2 (local_rank: 2)" in report
    assert "ValueError: a bug of rank 2" in report  # what @record is for


@pytest.mark.long
@pytest.mark.parametrize("gpus", [0, pytest.param(2, marks=needs_gpus)])
def test_a_slow_disk_does_not_end_the_run(start, gpus):
    """It takes longer to write a snapshot than --time-limit says, for which NCCL's groups wait, too."""
    words, more = launcher.command(STEM, 2, *SMALL[:-1], 2, "--time-limit", 5, "--snapshot-every", 10)
    words.insert(words.index(str(lessons.get(STEM).path)), launcher.ROOT / "tests/probes/slow_disk.py")
    more |= {"SLOW": "12", "PYTHONPATH": f"{pretending.AT_EXIT}:{launcher.ROOT}/lessons"}
    result = start("", words=words, environment=more, gpus=gpus).finish()
    assert result.code == 0 and "resumed" not in result.stdout, result.stderr


@pytest.mark.long
def test_a_process_that_waits_in_torch_for_one_that_is_gone_hears_the_end_all_the_same(start):
    """Python's handlers do not run there. On GPUs it is NCCL for which they wait."""
    run = start(STEM, 2, *SMALL[:-1], 3000, "--time-limit", 600)
    stopped, waiting = trained(run, STEM)
    os.kill(stopped, signal.SIGSTOP)

    def waits():
        before = cpu_seconds(waiting)
        time.sleep(1)
        return cpu_seconds(waiting) - before < 0.05  # a step takes more

    wait_for(waits)
    os.kill(waiting, signal.SIGTERM)
    wait_for(lambda: "told to stop, but the step did not end within 15 seconds" in run.stderr(), 60)
    os.kill(stopped, signal.SIGCONT)
    stop(run)


def test_the_end_of_a_child_is_not_heard_as_ones_own():
    """As of a compiler. A DataLoader with workers makes torch listen for the end of every child."""
    trainer = os.fork()
    if trainer == 0:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        snapshot.listen_for_the_end(threading.Event(), limit=1)
        subprocess.run(["true"])
        time.sleep(3)  # what takes SIGCHLD for SIGTERM ends the process before
        os._exit(0)
    assert os.waitpid(trainer, 0)[1] == 0


# ---- a script of a reader's own ---------------------------------------------------------------


@pytest.mark.long
def test_a_copy_of_the_module_serves_a_script_that_has_nothing_else_of_ours(start, tmp_path):
    """Told to stop, the newest file damaged, and started again: it ends with an undisturbed run's bytes."""
    project = tmp_path / "project"
    project.mkdir()
    script = shutil.copy(launcher.ROOT / "tests/probes/own_script.py", project)
    shutil.copy(snapshot.__file__, project)
    words, _ = launcher.command("04_ddp_torchrun", 2, script=script)
    whole = start(STEM, words=words, folder="whole").finish()
    assert whole.code == 0, whole.stderr

    run = start(STEM, words=words)
    run.wait_for(lambda: list(run.out.glob("own/*.snapshot")))
    assert stop(run).code != 0
    assert not (run.out / "weights").exists()
    older, newest = sorted(run.out.glob("own/*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-100])
    again = start(STEM, words=words).finish()
    assert again.code == 0, again.stderr
    assert again.stderr.count(f"refused out/own/{newest.name}: damaged") == 1
    step = int(re.search(r"step(\d+)", older.name).group(1))
    # Two processes write the words and the end of a line, each in a write of its own.
    assert again.stdout.count(f"resumed after step {step}") == 2
    assert (again.out / "weights").read_bytes() == (whole.out / "weights").read_bytes()
