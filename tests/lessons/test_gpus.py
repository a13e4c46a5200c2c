"""Lessons 07 to 13 over NCCL, where there is a GPU: several processes share it, each as a "node" of its own.

NCCL refuses two ranks on one GPU of one machine. A rank with another NCCL_HOSTID is on another machine, as
far as it knows. Without a GPU one lesson runs so on gloo, so that the way of starting them is tried.
"""

import sys

import pytest
import torch.distributed as dist

import launcher
import lessons
import workload

BEYOND = [lesson for lesson in lessons.LESSONS if not lesson.ladder]

# A lesson takes the GPU of its rank. Here all take the first.
NODE = f"""
import runpy, sys
sys.path.insert(0, {str(launcher.ROOT / "lessons")!r})
import workload
pick_device = workload.pick_device
workload.pick_device = lambda number=0: pick_device(0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def curve_of(start, lesson, processes, gpus):
    """The curve of a lesson whose ranks are all nodes of their own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    out = f"../out-{processes}"
    started = []
    for rank in range(processes):
        environment = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": 0, "NCCL_HOSTID": f"node-{rank}"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        environment |= {"TORCHELASTIC_USE_AGENT_STORE": True, "GLOO_SOCKET_IFNAME": "lo"}
        words = [
            "env",
            *(f"{name}={value}" for name, value in environment.items()),
            sys.executable,
            "-c",
            NODE,
        ]
        words += [lesson.path, *lesson.small.split(), "--epochs", 2, "--out", out]
        started.append(start(lesson.stem, words=words, folder=f"{processes}-{rank}", gpus=gpus))
    for run in started:
        result = run.finish()
        assert result.code == 0, f"status {result.code}\n{result.stdout}\n{result.stderr}"
    return launcher.read_curve(result.out.parent / out, lesson.stem)


def compare(start, lesson, processes, gpus):
    alone, together = (curve_of(start, lesson, count, gpus) for count in (1, processes))
    assert {row["world_size"] for row in together} == {processes}
    assert launcher.difference(together, alone, lesson.curve) == ""


@pytest.mark.skipif(workload.gpu_count() < 1, reason="needs 1 GPU")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("lesson", BEYOND, ids=lambda lesson: lesson.stem)
def test_nodes_that_share_a_gpu_have_one_curve(start, lesson, processes):
    compare(start, lesson, processes, gpus=True)


@pytest.mark.long
def test_so_have_nodes_on_a_cpu(start):
    compare(start, lessons.get("09_fsdp"), 2, gpus=False)
