"""Lesson 06b under a real SLURM: the three ways to start it, back into the queue and on from the snapshot."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.lines import check_curve
from tools import launcher
from tools.testbed import pretending, slurm
from tools.testbed.processes import alive, wait_for

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason="needs SLURM: make tools installs it")

SCRIPT = launcher.ROOT / "lessons/launch/slurm.sbatch"
PAGE = SCRIPT.with_name("slurm.md").read_text()
SIZES = ("--train-size", 1200, "--test-size", 300, "--epochs", 12)
NAMES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
TOLD = r"\*\*\* STEP \d+\.0 ON \S+ CANCELLED AT "  # the line that SLURM writes when it signals the tasks


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.Cluster(tmp_path_factory.mktemp("slurm") / "cluster", alive) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def binding(tmp_path_factory):
    """A cluster of the same, which binds each task to its CPUs, as most do."""
    folder = tmp_path_factory.mktemp("binding") / "cluster"
    with slurm.Cluster(folder, alive, tasks="task/affinity", cpus=2) as cluster:
        yield cluster


@pytest.fixture
def submit(cluster, tmp_path):
    """Submit the lesson on two nodes, one process on each; after the test it is gone, however that ended."""
    jobs = []

    def submit(way, *arguments, options=(), to=cluster, **environment):
        environment |= {"START": way}
        jobs.append(to.submit(tmp_path / "job", SCRIPT, *arguments, options=options, environment=environment))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.cancel()
        job.finish()


@contextlib.contextmanager
def held(job, limit=180):
    """Hold the run after its third epoch: one process sleeps, and the others wait for it."""
    job.wait_for_log("^epoch  3 ", limit)
    pid = job.workers()[-1]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert not re.search("^epoch 12 ", job.log(), re.M), "it was over before it could be held"
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def environment(pid, name):
    """The value of this name in the environment of another process."""
    return re.search(rf"\0{name}=([^\0]*)", "\0" + Path(f"/proc/{pid}/environ").read_text())[1]


def cores(pid):
    """The cores that a process may run on."""
    return re.search(r"^Cpus_allowed_list:\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M)[1]


def check_the_end(job, reference, world_size=2, restarts=0):
    """The job is done, with lesson 01's curve. Returns the places at which it went on, as (epoch, step)."""
    assert job.finish() == "COMPLETED", job.everything()
    check_curve(job.folder / "out", "06b_preemption", reference(*SIZES), world_size)
    assert job.show("Restarts") == str(restarts), job.everything()
    assert set(os.listdir(job.folder)) == {"log", "out"}
    assert not list((job.folder / "out").glob("*.temporary"))
    return resumed(job)


def resumed(job):
    """The places at which it went on, as (epoch, step)."""
    found = re.findall(r"^resumed in epoch (\d+) after step (\d+)$", job.log(), re.M)
    return [(int(epoch), int(step)) for epoch, step in found]


def check_that_nothing_was_lost(job):
    """It saved when it was told to: it went on in the middle of an epoch, and printed each epoch once."""
    (place,) = resumed(job)
    assert place > (3, 0), job.everything()
    printed = list(map(int, re.findall(r"^epoch +(\d+) ", job.log(), re.M)))
    assert printed == list(range(1, 13)), job.everything()


def check_that_it_failed(job, error):
    assert job.finish() == "FAILED", job.everything()
    said = re.findall("^error: (.*)$", job.log(), re.M)
    assert set(said) == {error}, job.everything()
    assert len(said) <= 2, job.everything()  # each machine says it, unless srun has ended it before
    assert job.show("Restarts") == "0", job.everything()


@pytest.mark.night
def test_a_time_limit_costs_nothing(cluster, submit, reference):
    # SLURM looks at the limits every 30 s, and at the next time it finds that there are less than 200 s left.
    # A limit that is short from the start could come before the third epoch, or twice, on a busy machine.
    job = submit("torchrun", *SIZES, "--time-limit", 240, options=("--time=30", "--signal=B:USR1@200"))
    with held(job):
        ran = job.show("RunTime")  # as 00:01:23
        hours, minutes, _ = map(int, ran.split(":"))
        cluster.call("scontrol", "update", f"JobId={job.number}", f"TimeLimit={60 * hours + minutes + 3}")
        job.wait_for_log(TOLD, limit=75)
        cluster.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    check_the_end(job, reference, restarts=1)
    check_that_nothing_was_lost(job)


@pytest.mark.long("torchrun-options0")
@pytest.mark.night
@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("torchrun", ("--gpus-per-node=2",)),
        ("python", ("--ntasks-per-node=2",)),
        ("spawn", ("--gpus-per-node=2",)),
    ],
)
def test_a_job_has_lesson_01s_curve(submit, reference, way, options):
    """Two processes on each node. An agent starts as many as it has GPUs; these here only pretend."""
    job = submit(way, *SIZES, options=options)
    if way != "spawn":  # what these are told, the next test asks
        told = []
        with held(job):
            for pid in job.workers():
                told.append([environment(pid, name) for name in NAMES])
        assert sorted(told) == [
            ["0", "0", "2", "4"],
            ["1", "1", "2", "4"],
            ["2", "0", "2", "4"],
            ["3", "1", "2", "4"],
        ]
    assert check_the_end(job, reference, world_size=4) == []


@pytest.mark.long
def test_a_spawned_process_is_told_what_an_agent_would_tell_it(tmp_path):
    """Node 1 of 3, two processes on each: ranks 2 and 3. The status is the one for which the batch script
    puts the job back into the queue, though SIGTERM comes at each moment of the end."""
    script = tmp_path / "who.py"
    script.write_text(
        "import json, os, pathlib, sys, time\n"
        f"told = [os.environ[name] for name in {NAMES}]\n"
        "pathlib.Path(told[0]).write_text(json.dumps([*told, *sys.argv[1:]]))\n"
        "while not all(map(os.path.exists, '23')):\n"  # the first to end has the other one ended
        "    time.sleep(0.1)\n"
        "time.sleep(0.1)\n"
        "sys.exit(75)\n"
    )
    words = [sys.executable, SCRIPT.with_name("spawn_on_node.py"), "2", script, "--epochs", "3"]
    place = {"SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    run = subprocess.Popen(words, cwd=tmp_path, env=os.environ | place, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / "2").exists() and (tmp_path / "3").exists(), 240)
        wait_for(lambda: run.poll() is not None or run.send_signal(signal.SIGTERM), 60)
        assert run.returncode == 75
    finally:
        run.kill()
    told_rank_2 = json.loads((tmp_path / "2").read_text())
    told_rank_3 = json.loads((tmp_path / "3").read_text())
    assert told_rank_2 == ["2", "0", "2", "6", "--epochs", "3"]
    assert told_rank_3 == ["3", "1", "2", "6", "--epochs", "3"]


@pytest.mark.long
def test_the_preflight_under_srun(cluster):
    """Without torchrun: it takes its rank, and where to meet, from SLURM."""
    words = ["srun", "--nodes=2", "--ntasks=4", sys.executable, launcher.ROOT / "lessons/launch/preflight.py"]
    said = cluster.call(*words, limit=180)
    assert said.startswith("4 ranks on 1 host, by gloo\n")
    assert said.endswith("\nnothing is wrong that this can see\n")


@pytest.mark.long("python-options1-expected1")
@pytest.mark.night
@pytest.mark.parametrize(
    ("way", "options", "expected"),
    [
        # All processes of a node are one task, and have all its cores. A task for each has its own.
        ("torchrun", ("--ntasks-per-node=2",), ["0-1"] * 4),
        ("python", ("--ntasks-per-node=2",), ["0", "0", "1", "1"]),
    ],
)
def test_the_cores_of_a_process(binding, submit, way, options, expected):
    job = submit(way, *SIZES, options=options, to=binding)
    with held(job):
        assert sorted(map(cores, job.workers())) == expected
    assert "note: " not in job.log()
    job.cancel()


@pytest.mark.night
def test_who_asks_for_gpus_only_has_one_core_for_all_of_them(binding, submit):
    job = submit("torchrun", *SIZES, options=("--gpus-per-node=2",), to=binding)
    with held(job):
        found = {}
        for pid in job.workers():
            found[environment(pid, "RANK")] = cores(pid)
    assert found["0"] == found["1"] in "01" and found["2"] == found["3"] in "01"
    assert "note: 2 processes on 1 CPU of a node: add --ntasks-per-node 2" in job.log()
    job.cancel()


@pytest.mark.skipif(bool(pretending.missing(2)), reason=pretending.missing(2))
@pytest.mark.night
def test_a_task_with_a_gpu_of_its_own_does_not_share_it(cluster, tmp_path):
    """Each task sees one GPU, as this cluster's SLURM would let it with real ones, and takes it as GPU 0."""
    reports = tmp_path / "reports"
    reports.mkdir()
    more = pretending.environment(2, reports, cluster.environment)
    more["PYTHONPATH"] = str(pretending.AT_EXIT)
    script = (
        "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=2 "
        "MASTER_ADDR=localhost MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000)) "
        'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID; exec "$@"'
    )
    words = ["srun", "--nodes=1", "--ntasks=2", "--gpus-per-task=1", "bash", "-c", script, "bash"]
    words += [sys.executable, launcher.ROOT / "lessons/10_pipeline.py"]  # which connects as it begins
    words += [*SIZES[:4], "--epochs", 1, "--out", tmp_path / "out"]
    cluster.call(*words, environment=more, limit=180)
    gpus = [json.loads(path.read_text())["gpus"] for path in reports.iterdir()]
    assert gpus == [1, 1]


# What SLURM does before the time limit, but now: it looks at the limits every 30 s only. It preempts with a
# SIGTERM for the tasks, and nothing for the shell of the job.
SIGNALS = {
    "limit": ("scancel", "--signal=USR1", "--batch"),
    "preempt": ("scancel", "--signal=TERM"),
    "requeue": ("scontrol", "requeue"),
}


@pytest.mark.long("spawn-preempt")
@pytest.mark.night
@pytest.mark.parametrize(
    ("way", "signal"),
    [("torchrun", "limit"), ("python", "preempt"), ("spawn", "preempt"), ("torchrun", "requeue")],
)
def test_a_job_that_is_told_to_stop_comes_back_and_goes_on(cluster, submit, reference, way, signal):
    job = submit(way, *SIZES)
    with held(job):
        cluster.call(*SIGNALS[signal], job.number)
        if signal == "limit":
            job.wait_for_log(TOLD)
    ((epoch, _),) = check_the_end(job, reference, restarts=1)
    if signal == "requeue":
        # SLURM tells the shell and srun to stop as well: the run may be killed before it has saved.
        assert epoch >= 3, job.everything()
    else:
        check_that_nothing_was_lost(job)


@pytest.mark.long
def test_a_job_that_gets_nowhere_does_not_come_back_for_ever(cluster, submit):
    job = submit("python", *SIZES, REQUEUES="0")
    with held(job):
        cluster.call(*SIGNALS["limit"], job.number)
        job.wait_for_log(TOLD)
    check_that_it_failed(job, "started again 0 times: give it more --time, or more REQUEUES")


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "arguments", "error"),
    [
        ("torchrun", ("--epochs", 0), "--epochs must be at least 1, not 0"),
        ("python", ("--train-size", 100), "100 training images do not fill one --batch-size of 120"),
        ("screen", (), "START is screen: take torchrun, python or spawn"),
    ],
)
def test_a_job_that_fails_does_not_come_back(submit, way, arguments, error):
    check_that_it_failed(submit(way, *arguments), error)


@pytest.mark.long
def test_the_scripts_on_the_page(cluster, tmp_path):
    """The first job, with the lines that copy data to each node, and the array; smaller, and without GPUs."""
    first, _, rates = re.findall(r"```sh\n(#!.*?)```", PAGE, re.S)
    (copies,) = re.findall(r"```sh\n(export ARCHIVE=.*?)```", PAGE, re.S)
    (tmp_path / "lessons").symlink_to(launcher.ROOT / "lessons")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    cluster.call("tar", "-cf", tmp_path / "images.tar", "-C", launcher.ROOT, "lessons/pages")
    copies = copies.replace("/shared/images.tar", str(tmp_path / "images.tar"))
    scripts = {
        "first": first.replace("set -eu\n", f'set -eu\n{copies}ls "$DATA/lessons/pages"\n'),
        "rates": rates,
    }
    sizes = "--epochs 1 --train-size 240 --test-size 60 --batch-size 24"
    for name, script in scripts.items():
        path = tmp_path / f"{name}.sbatch"
        path.write_text(re.sub(r"(lessons/\d+\w+\.py)", rf"\1 {sizes}", script))
        options = ("--parsable", "--cpus-per-task=2", "--mem=1G", f"--chdir={tmp_path}")
        number = cluster.call("sbatch", *options, path, cwd=tmp_path).strip()
        queue = ("squeue", "--noheader", "--jobs", number)
        slurm.wait_until(
            lambda words=queue: not cluster.call(*words, check=False), 400, cluster.logs, every=1
        )
    (path,) = tmp_path.glob("first-*.log")
    log = path.read_text()
    assert "01.md\n" in log and "epoch  1 | loss" in log
    assert not list((cluster.folder / "tmp").glob("data-*"))
    assert len(list(tmp_path.glob("rates-*-[0-3].log"))) == 4
    losses = {json.loads(path.read_text())["loss"] for path in tmp_path.glob("out/rates/*/*.jsonl")}
    assert len(losses) == 4


ANY_SCRIPT = """
import os, sys
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
    if os.environ["RANK"] == "3" and "--fail" in sys.argv:
        raise ValueError("rank 3 does not feel well")
    dist.barrier()
    dist.destroy_process_group()

main()
"""


@pytest.mark.long
@pytest.mark.parametrize("fails", [False, True])
def test_the_script_for_any_script_keeps_a_file_for_each_rank(cluster, tmp_path, fails):
    """Two nodes and two processes on each, with the page's own lines; the GPUs only pretend."""
    _, any_script, _ = re.findall(r"```sh\n(#!.*?)```", PAGE, re.S)
    (look,) = re.findall(r"```sh\n(cat .*?)```", PAGE, re.S)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "any.sbatch").write_text(any_script)
    (tmp_path / "train.py").write_text(ANY_SCRIPT)
    words = ["sbatch", "--parsable", "--cpus-per-task=2", f"--chdir={tmp_path}", "any.sbatch", "train.py"]
    words += ["--fail"] if fails else ["--well"]
    number = cluster.call(*words, cwd=tmp_path).strip()
    queue = ("squeue", "--noheader", "--jobs", number)
    slurm.wait_until(lambda: not cluster.call(*queue, check=False), 400, cluster.logs, every=1)
    logs = tmp_path.glob(f"logs/{number}_*/attempt_0/[01]/stdout.log")
    printed = sorted(path.read_text() for path in logs)
    assert printed == [f"rank {rank} of 4 {words[-1]}\n" for rank in range(4)]
    log = (tmp_path / f"any.sbatch-{number}.log").read_text()
    assert sorted(re.findall(r"\[default0\]:rank (\d)", log)) == ["0", "2"]
    errors = list(tmp_path.glob("logs/*/*/*/error.json"))
    if fails:
        oldest = subprocess.run(
            ["bash", "-c", look.replace("NUMBER", number)], cwd=tmp_path, capture_output=True, text=True
        )
        assert json.loads(oldest.stdout)["message"]["message"] == "ValueError: rank 3 does not feel well"
        assert len(errors) > 1
    else:
        assert not errors
