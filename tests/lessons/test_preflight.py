"""The preflight on real processes and on real hosts: what it says when all is well, and what it names."""

import re
import sys
import tempfile
from pathlib import Path

import pytest

from launch import preflight
from tools import launcher
from tools.testbed import hosts, pretending

TOOL = launcher.ROOT / "lessons/launch/preflight.py"
WELL = "nothing is wrong that this can see"


@pytest.fixture
def three(tmp_path):
    with hosts.Hosts(tmp_path / "network", 3) as network:
        yield network


def fly(network, *options, ranks=(0, 1, 2), environment=None, before=None):
    """Rank 0 on host 1, and so on, as srun would start them; their outputs. `before` has Python lines that a
    rank runs first.

    They begin when all of them have imported torch: on a busy machine that takes one of them seconds longer,
    and it would be missed."""
    commands, here = [], Path(tempfile.mkdtemp(dir=network.folder))
    for rank in ranks:
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "3"}
        place |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"} | (environment or {})
        lines = [
            "import pathlib, runpy, time, torch",
            f"here = pathlib.Path({str(here)!r})",
            f"(here / '{rank}').touch()",
            f"while len(list(here.iterdir())) < {len(ranks)}: time.sleep(0.01)",
            (before or {}).get(rank, ""),
            f"runpy.run_path({str(TOOL)!r}, run_name='__main__')",
        ]
        words = [sys.executable, "-c", "\n".join(lines), *options]
        commands.append(network.run(rank + 1, *words, environment=place))
    for command in commands:
        command.finish(120)
    return commands


def problems(command):
    return re.findall(r"^problem: (.*)$", command.output(), re.M)


def test_all_is_well_under_torchrun(start):
    words, _ = launcher.command("04_ddp_torchrun", 2)
    result = start("04_ddp_torchrun", words=[*words[:-1], TOOL]).finish()
    lines = result.stdout.splitlines()
    assert (result.code, lines[-1]) == (0, WELL), result.stdout + result.stderr
    assert lines[0] == "2 ranks on 1 host, by gloo"
    assert len(lines) <= 40 and max(map(len, lines)) <= 110  # one page
    assert len(re.findall(r"^  \d -> \d \(.*\) +[\d.]+ [GM]B/s$", result.stdout, re.M)) == 2
    size, speed = re.search(r"^all-reduce of ([\d.]+) MiB: ([\d.]+) [GM]B/s", result.stdout, re.M).groups()
    assert float(size) >= 0.0625 and float(speed) > 0
    assert float(re.search(r"^([\d.]+) s, without the start$", result.stdout, re.M)[1]) < 60


@pytest.mark.long
@pytest.mark.alone  # it measures the speed of links, and compares them
def test_what_differs_and_a_slow_link_are_named(three):
    """One host has a different torch, one a clock of its own, and one a link of 20 Mbit/s."""
    rate = ("tbf", "rate", "20mbit", "burst", "32kbit", "latency", "400ms")
    three.configure(2, "tc", "qdisc", "add", "dev", "eth0", "root", *rate)
    before = {
        1: "import torch; torch.__version__ = '2.9.0'",
        2: "import time; now = time.time; time.time = lambda: now() + 90",
    }
    first, second, third = fly(three, before=before)
    version, clock, slow = problems(first)
    assert version.startswith("torch differs: ") and "; 2.9.0 on rank 1." in version
    assert re.match(r"the clocks of host3 and others are (89|90)\.\d s apart", clock)
    assert re.match(r"the link 1 -> 2 \(host2 -> host3\) carries [12]\.\d+ MB/s, and the best", slow)
    speed = float(re.search(r"all-reduce of .*: ([\d.]+) MB/s over each link", first.output())[1])
    assert 0.5 < speed < 3.2, "20 Mbit/s are 2.5 MB/s, and a ring is as slow as its slowest link"
    for command in (first, second, third):
        assert command.process.returncode == 1
    assert second.output() == third.output() == "", "one page, from rank 0"


def test_a_dead_link_is_named(three):
    """host2 reaches host1 but not host3: a group of the three would wait, and not say for whom."""
    three.configure(2, "ip", "neighbour", "replace", "10.0.0.3", "lladdr", "02:00:00:00:00:63", "dev", "eth0")
    commands = fly(three, "--seconds", 2)
    (problem,) = problems(commands[0])
    assert problem.startswith("the link 1 -> 2 (host2 -> host3) is dead: no connection to 10.0.0.3")
    assert len(commands) == 3
    for command in commands:
        assert command.process.returncode == 1


@pytest.mark.long
def test_a_different_script_other_data_and_a_folder_of_its_own_are_named(three, tmp_path):
    """Each host has a folder of its own at the same relative path, as a machine without a shared disk has."""
    before = {}
    for rank in range(3):
        home = tmp_path / f"host{rank + 1}"
        (home / "data").mkdir(parents=True)
        (home / "shared").mkdir()
        (home / "train.py").write_text("print(1)" if rank < 2 else "print(2)")
        (home / "data/images").write_bytes(b"0" * (100 if rank != 1 else 99))
        before[rank] = f"import os; os.chdir({str(home)!r})"
    options = ("--script", "train.py", "--data", "data", "--shared", "shared", "--seconds", 5)
    script, data, second, third = problems(fly(three, *options, before=before)[0])
    assert re.match(
        r"script differs: \w{12} on ranks 0 to 1; \w{12} on rank 2. Copy the same everywhere", script
    )
    assert re.match(r"data differs: 1 files of 100 bytes \(\w+\) on ranks 0, 2; 1 files of 99 bytes", data)
    assert second.startswith("host2 ") and third.startswith("host3 ")
    assert second.endswith("does not see in shared what host1 wrote there: mount the same disk on both")
    assert not list(tmp_path.glob("host?/shared/*")), "nothing is left behind"
    alike = dict.fromkeys(range(3), before[0])
    assert problems(fly(three, *options, before=alike)[0]) == []


@pytest.mark.parametrize(
    ("names", "device", "expected", "slow"),
    [
        ("ab", "cpu", None, 0),  # both ways alike: nothing here says that they should be faster
        ("ab", "cpu", 49e6, 1),
        ("aa", "cpu", 125e6, 0),  # no cable
        ("abc", "cpu", None, 1),
        ("aaa", "H200", None, 1),
    ],
)
def test_which_links_are_slow(names, device, expected, slow):
    seen = [{"host": name, "device": device} for name in names]
    speeds = [24e6, 25e6, 2.5e6][: len(names)]
    page = preflight.Page()
    preflight.show_links(page, seen, speeds, expected)
    marked = [line for line in page.lines if line.endswith("SLOW")]
    assert len(page.problems) == len(marked) == slow
    for line in page.problems:
        assert line.startswith(f"the link {speeds.index(min(speeds))} -> ")


@pytest.mark.parametrize(("second", "problems"), [("a", 0), ("b", 2)])
def test_the_interface_matters_only_between_hosts(monkeypatch, second, problems):
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    interfaces = {"eth0": {"address": "10.0.0.1", "speed": 0}, "eth1": {"address": "192.168.7.1", "speed": 0}}
    rank = {"interfaces": interfaces, "address": "192.168.7.1", "route": "10.0.0.1"}
    page = preflight.Page()
    preflight.show_addresses(page, [rank | {"host": "a"}, rank | {"host": second}])
    assert len(page.problems) == problems
    for problem in page.problems:
        assert problem.endswith("set GLOO_SOCKET_IFNAME=eth0 and NCCL_SOCKET_IFNAME=eth0")


@pytest.mark.long
def test_the_interface_to_take_is_named(three):
    for number in (1, 2, 3):
        three.add_interface(number)
    (first, *_) = fly(three, "--seconds", 1)
    found = problems(first)
    assert len(found) == 6, first.output()  # the last three are of dead links
    for number, problem in enumerate(found[:3], 1):
        assert problem.startswith(
            f"host{number} offers 192.168.7.{number} (eth1) to the others, but the way "
        )
        assert problem.endswith("set GLOO_SOCKET_IFNAME=eth0 and NCCL_SOCKET_IFNAME=eth0")
    (first, *_) = fly(three, environment={"GLOO_SOCKET_IFNAME": "eth0"})
    assert first.output().splitlines()[-1] == WELL


@pytest.mark.night
def test_closed_ports_are_named(three):
    for number in (1, 2, 3):
        three.close_ports(number)
        three.open_ports(number, "29500")
    (first, *_) = fly(three, "--seconds", 1)
    of_0, of_1, of_2 = problems(first)
    assert of_0.startswith("the link 0 -> ")
    assert of_1.startswith("the link 1 -> ")
    assert of_2.startswith("the link 2 -> ")


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named(three):
    first, second = fly(three, "--seconds", 1, ranks=(0, 1))
    assert "error: within 3 s, these ranks of 3 did not come: 2." in first.output()
    assert first.process.returncode == second.process.returncode == 1


@pytest.mark.night
def test_a_host_that_is_cut_off_says_so_itself(three):
    three.cut(3)
    first, _, third = fly(three, "--seconds", 1)
    assert "did not come: 2." in first.output()
    assert "error: rank 2 on host3 cannot reach 10.0.0.1:29500, where all meet" in third.output()


FEW = (
    "error: too few GPUs: rank 1 would share a GPU with another rank of the same machine. Put SHARE_GPU=1 in "
)


@pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing())
@pytest.mark.long
@pytest.mark.parametrize(("gpus", "ranks"), [(1, 2), (2, 2)], ids=["1-2", "2-2"])
def test_ranks_share_gpus_only_if_they_may(start, gpus, ranks):
    words, _ = launcher.command("04_ddp_torchrun", ranks)
    for share in ("1", "") if ranks > gpus else ("",):
        folder, environment = f"run{share}", {"SHARE_GPU": share}
        run = start("", words=[*words[:-1], TOOL], gpus=gpus, folder=folder, environment=environment)
        result = run.finish()
        if ranks > gpus and not share:
            (line,) = re.findall("^error:.*", result.stderr, re.M)
            assert result.code == 1 and line.startswith(FEW) and result.stdout == ""
        else:
            lines = result.stdout.splitlines()
            assert (result.code, lines[-1]) == (0, WELL), result.stdout + result.stderr
            assert lines[0] == f"{ranks} ranks on 1 host, by nccl"


def test_without_a_launcher_it_says_how_to_start_it(start):
    result = start("04_ddp_torchrun", words=[sys.executable, TOOL]).finish()
    assert result.code == 1
    assert result.stderr.startswith("error: start it as the run will be started: torchrun ")
