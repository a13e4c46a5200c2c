"""Hosts of their own: three network namespaces joined by a bridge, a torchrun agent in each.

The launches are true ones, of lesson 06b on a disk that the hosts share. What goes wrong, and what is then
seen, are the rows of faults.py.
"""

import itertools
import os
import re
import shutil
import signal
import sys
import time

import pytest

from tests.helpers.lines import check_curve, column
from tools import faults, launcher
from tools.testbed import hosts
from tools.testbed.processes import wait_for as wait_for_condition

LESSON = "06b_preemption"
SIZES = ("--train-size", 1200, "--test-size", 300, "--snapshot-every", 5)
LONG = (*SIZES, "--epochs", 3000)  # for runs that are not to end by themselves


@pytest.fixture
def network(tmp_path):
    """Bring up some hosts: network(3)."""
    up = []

    def network(count):
        up.append(hosts.Hosts(tmp_path / f"network{len(up)}", count))
        return up[-1]

    yield network
    for one in up:
        one.close()


def has_written(text, commands, after):
    """Whether one of these commands has written the text beyond so many characters of its output."""
    return any(text in command.output()[old:] for command, old in zip(commands, after, strict=True))


@pytest.fixture
def see(request):
    """Wait until a fault is seen as its row says: see("cut", commands, since, after). All rows of a test
    must be seen in it. `after` is how much of each output is older than the fault."""
    expected = set()
    for name, row in faults.ROWS.items():
        if row.test == request.node.name:
            expected.add(name)
    seen = set()
    failed = request.session.testsfailed
    if hosts.why_not():
        pytest.skip(hosts.NEEDED)

    def see(name, commands, since, after=None):
        row = faults.ROWS[name]
        after = after or [0] * len(commands)
        while not has_written(row.text, commands, after):
            if time.monotonic() - since > row.limit:
                wrote = ""
                for command in commands:
                    wrote += f"---- {command.name}\n{command.output()}\n"
                pytest.fail(f"{row.fault}: no {row.text!r} after {row.limit} seconds:\n{wrote}")
            time.sleep(0.02)
        print(f"seen: {name} after {time.monotonic() - since:.1f} s")
        seen.add(name)

    yield see
    if request.session.testsfailed == failed:
        assert seen == expected


def train(network, numbers, *options, nodes="1:3", time_limit=faults.TIME_LIMIT, **more):
    """An agent on each of these hosts."""
    conf = faults.CONF | more.pop("conf", {})
    options = (*options, "--time-limit", time_limit, "--out", network.shared)
    words, environment = hosts.torchrun(*options, nodes=nodes, conf=conf, **more)
    return [network.run(number, *words, environment=environment) for number in numbers]


def plain(network, number, rank, *options, first=1, time_limit=faults.TIME_LIMIT):
    """A process without an agent, one of two: they meet on the host that is named first."""
    environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": f"10.0.0.{first}", "MASTER_PORT": "29500"}
    script = launcher.ROOT / f"lessons/{LESSON}.py"
    words = (sys.executable, script, *options, "--time-limit", time_limit, "--out", network.shared)
    return network.run(number, *words, environment=environment)


def lengths(commands):
    return [len(command.output()) for command in commands]


def check_the_end(network, commands, reference, *options):
    """All ended well, with lesson 01's curve, and what one run leaves on the disk that they share."""
    for command in commands:
        assert command.finish(150) == 0, command.output()
    curve = check_curve(network.shared, LESSON, reference(*options))
    snapshots = {path.name for path in network.shared.glob("*.snapshot")}
    assert len(snapshots) == 2
    others = set(os.listdir(network.shared)) - snapshots
    assert others == {f"{LESSON}.jsonl", f"{LESSON}.pt", f"{LESSON}.lock", "ticket"}
    return curve


@pytest.mark.long
def test_machines_without_a_shared_disk_lose_nothing_when_one_is_replaced(network, kept):
    """A process is killed, then both hosts, and one of these comes back with an empty disk."""
    sizes = (*SIZES, "--epochs", 12)
    net = network(2)
    words, environment = hosts.torchrun(*sizes, "--own-disks", "--out", "out", nodes=2, conf=faults.CONF)

    def start():
        return [net.run(number, *words, environment=environment) for number in (1, 2)]

    def wait_for(text, after):
        """Rank 0, which prints, may be on either host."""
        wait_for_condition(lambda: has_written(text, both, after), 120)

    both = start()
    wait_for("epoch  3 |", [0, 0])
    before = lengths(both)
    both[1].kill(both[1].workers()[0])
    wait_for("resumed in epoch", before)
    wait_for("| loss ", lengths(both))
    for command in both:
        for pid in command.alive():
            command.kill(pid)
        command.process.wait()
    shutil.rmtree(net.folder / "host1/out")
    both = start()
    wait_for("resumed in epoch", [0, 0])
    for command in both:
        assert command.finish(150) == 0, command.output()
    (weights,) = net.folder.glob("host?/out/*.pt")
    expected = kept(LESSON, 2, *sizes).out / f"{LESSON}.pt"
    assert weights.read_bytes() == expected.read_bytes()
    for number in (1, 2):
        assert len(list((net.folder / f"host{number}/out").glob("*.snapshot"))) == 2


@pytest.mark.night
def test_a_run_goes_on_without_a_process_a_cable_and_a_host(network, reference, see):
    """And it ends with the curve of a run that nothing happened to."""
    sizes = (*SIZES[:4], "--epochs", 50)
    net = network(3)
    agents = train(net, (1, 2, 3), *sizes, "--snapshot-every", 5, time_limit=20)
    first, second, third = agents
    first.wait_for("epoch  3 |", 120)

    before, since = lengths(agents), time.monotonic()
    second.kill(second.workers()[0])
    see("process", [second], since, before[1:2])
    see("restart", [first], since, before[:1])
    first.wait_for("| loss ", 20, len(first.output()))

    before = lengths(agents)
    net.cut(3)
    time.sleep(2)
    paused = lengths(agents)
    net.mend(3)
    see("mended", [first], time.monotonic(), paused[:1])
    for agent, start in zip(agents, before, strict=True):
        said = agent.output()[start:]
        assert "Traceback" not in said
        assert "resumed" not in said

    before, since = lengths(agents), time.monotonic()
    (worker,) = third.workers()
    third.kill(third.agent())
    while worker in third.workers():
        assert time.monotonic() - since < 5, "a process goes on training although its agent is dead"
        time.sleep(0.05)
    see("agent", [first, second], since, before[:2])
    see("fewer", [first], since, before[:1])
    first.wait_for("| loss ", 20, len(first.output()))

    before, since = lengths(agents), time.monotonic()
    (back,) = train(net, (3,), *sizes, "--snapshot-every", 5, time_limit=20)
    see("more", [first], since, before[:1])
    curve = check_the_end(net, [first, second, back], reference, *sizes)
    sizes = column(curve, "world_size")
    changes = [size for size, _ in itertools.groupby(sizes)]
    assert changes == [3, 2, 3]


@pytest.mark.night
def test_a_cable_cut_for_good_and_the_host_of_the_rendezvous_lost(network, see):
    net = network(3)
    net.configure(2, "sysctl", "-w", "net.ipv4.tcp_retries2=4")
    agents = train(net, (1, 2, 3), *LONG)
    first, second, third = agents
    first.wait_for("epoch  1 |", 120)

    before, since = lengths(agents), time.monotonic()
    net.cut(2)
    see("cut off", [second], since, before[1:2])
    see("cut", [first, third], since, [before[0], before[2]])
    first.wait_for("resumed in epoch", faults.ROWS["fewer"].limit, before[0])
    while second.workers():
        assert time.monotonic() - since < faults.ROWS["cut"].limit
        time.sleep(0.05)
    see("hangs on", [second], since, before[1:2])
    assert second.finish(10) != 0
    first.wait_for("| loss ", 20, len(first.output()))
    assert third.process.poll() is None

    before, since = lengths([third]), time.monotonic()
    for pid in first.alive():
        first.kill(pid)
    see("store", [third], since, before)
    assert third.finish(faults.ROWS["store"].limit) != 0


@pytest.mark.night
def test_one_that_never_comes_is_not_waited_for_without_end(network, see):
    net = network(8)
    never = train(net, (1, 2), *LONG, nodes=3, conf={"join_timeout": faults.JOIN_TIMEOUT})
    started = {"never": never}
    # So that the packets leave, and nobody takes them.
    nobody = ("10.0.0.99", "lladdr", "02:00:00:00:00:63", "dev", "eth0")
    net.configure(4, "ip", "neighbour", "add", *nobody)
    endpoints = {"unreachable": "10.0.0.99:29400", "swallowed": "10.0.0.99:29400"}
    endpoints |= {"port": "host1:29401", "name": "nobody:29400"}
    for number, (name, endpoint) in enumerate(endpoints.items(), 3):
        started[name] = train(net, (number,), *LONG, endpoint=endpoint)
    started["plain"] = [plain(net, 7, 0, *LONG, first=7)]
    started["plain, not the first"] = [plain(net, 8, 1, *LONG)]
    waiting = {}  # since when each of them waits
    for name, commands in started.items():
        waiting[name] = commands[-1].started
    while waiting:
        for name, since in list(waiting.items()):
            living = [command for command in started[name] if command.process.poll() is None]
            if not living:
                see(name, started[name], since)
                del waiting[name]
            elif time.monotonic() - since > faults.ROWS[name].limit:
                started[name][0].finish(0)
        time.sleep(0.02)
    for command in itertools.chain(*started.values()):
        assert command.process.returncode != 0, command.output()
    for command in never:
        assert re.search(r"Rendezvous(Timeout|Closed|Connection)Error", command.output())


@pytest.mark.night
def test_a_process_that_hangs_is_noticed_and_ended(network, see):
    agents = train(network(2), (1, 2), *LONG)
    first, second = agents
    first.wait_for("epoch  1 |", 120)
    before, since = lengths(agents), time.monotonic()
    second.kill(second.workers()[0], signal.SIGSTOP)
    see("hang", [first], since, before[:1])
    see("ended", [second], since, before[1:])
    first.wait_for("resumed in epoch", faults.WAITS["STARTING"], before[0])


@pytest.mark.night
def test_the_wrong_interface_and_closed_ports(network, reference, see):
    """Both hosts reach the store, but not each other. Then each fault is mended, as its row says."""
    sizes = (*SIZES[:4], "--epochs", 3)

    def start(net, time_limit=faults.TIME_LIMIT):
        first = plain(net, 1, 0, *sizes, time_limit=time_limit)
        return first, plain(net, 2, 1, *sizes, time_limit=time_limit)

    two_interfaces, closed = network(2), network(2)
    for number in (1, 2):
        two_interfaces.add_interface(number)
        closed.close_ports(number)
        closed.open_ports(number, "29500")
    first, second = start(two_interfaces)
    third, fourth = start(closed)
    see("interface", [second], second.started)
    for command in (third, fourth):
        see("ports", [command], command.started)
        assert time.monotonic() - command.started > 5 * faults.TIME_LIMIT
    for command in (first, second, third, fourth):
        assert command.finish(faults.WAITS["STARTING"]) == 1
        assert "loss" not in command.output()

    agents = []
    for number in (1, 2):
        conf = faults.CONF | {"is_host": int(number == 1)}
        options = (*sizes, "--out", two_interfaces.shared)
        words, environment = hosts.torchrun(*options, nodes=2, conf=conf, endpoint="10.0.0.1:29400")
        words[1:1] = ["--local-addr", f"10.0.0.{number}"]
        environment["GLOO_SOCKET_IFNAME"] = "eth0"
        agents.append(two_interfaces.run(number, *words, environment=environment))
        closed.open_ports(number, "50000-50100")
        closed.configure(number, "sysctl", "-w", "net.ipv4.ip_local_port_range=50000 50100")
    check_the_end(two_interfaces, agents, reference, *sizes)
    check_the_end(closed, start(closed, time_limit=60), reference, *sizes)


# ---- the table ----


def test_every_row_is_produced_by_a_test():
    """Which sees all of its rows, or fails: see the fixture."""
    for row in faults.ROWS.values():
        assert row.test in globals() and row.measured <= row.limit
