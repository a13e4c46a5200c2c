"""Hosts for tests: network namespaces joined by a bridge, each with a name, an address and a folder.

All of it lives in namespaces of its own, below one process. When that one ends, the kernel takes down
every process, link and mount in them. It ends when it is killed, and when the test that holds its
standard input is gone. No rights are needed where the kernel lets an ordinary user make namespaces.
"""

import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
import time
import unittest
import uuid
from pathlib import Path

from tools import launcher
from tools.testbed.processes import alive

NEEDED = "needs network namespaces, and ip: make tools installs it"


def spaces(*kinds):
    """The words that start a command in new namespaces. The superuser needs no user namespace for them."""
    if os.geteuid() != 0:
        kinds = ("user", "map-root-user", *kinds)
    return ["unshare", *(f"--{kind}" for kind in kinds), "--fork", "--kill-child", "--mount-proc"]


KINDS = ("net", "mount", "uts", "ipc", "pid")


def set_up(folder, count):
    """The shell's words that make the hosts. Host 1 has the address 10.0.0.1, and so on."""
    lines = [
        "set -e",
        "mount -t tmpfs tmpfs /run && mkdir /run/netns",
        # A look-up that leaves for a name server would wait for it: no packet leaves these namespaces.
        f"mount --bind {shlex.quote(str(folder / 'hosts'))} /etc/hosts",
        f"mount --bind {shlex.quote(str(folder / 'nsswitch.conf'))} /etc/nsswitch.conf",
        "ip link set lo up",
        "ip link add bridge type bridge && ip link set bridge up",
    ]
    for number in range(1, count + 1):
        host = f"ip -n host{number}"
        lines += [
            f"ip netns add host{number}",
            f"ip link add link{number} type veth peer name eth0 netns host{number}",
            f"ip link set link{number} master bridge up",
            f"{host} address add 10.0.0.{number}/24 dev eth0",
            f"{host} link set eth0 up && {host} link set lo up",
        ]
    return "\n".join([*lines, "echo up", "exec cat >/dev/null"])


@functools.cache
def why_not():
    """Why there can be no hosts here; an empty string if there can."""
    probe = (
        "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add host1 && "
        "ip link add bridge type bridge && ip link add link1 type veth peer name eth0 netns host1"
    )
    words = [*spaces(*KINDS), "sh", "-c", probe]
    try:
        result = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return result.stderr if result.returncode else ""


class Hosts:
    """Some hosts, joined by a bridge. Use it in a `with`: its end takes everything down."""

    def __init__(self, folder, count):
        if why_not():
            raise unittest.SkipTest(NEEDED)  # pytest skips the test
        self.folder, self.mark = folder, f"rungs-{uuid.uuid4().hex}"
        self.shared = folder / "shared"  # the disk that all hosts have
        self.shared.mkdir(parents=True, exist_ok=True)
        names = "".join(f"10.0.0.{number} host{number}\n" for number in range(1, count + 1))
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        words = [*spaces(*KINDS), "sh", "-c", set_up(folder, count)]
        more = {"env": os.environ | {"RUNGS_MARK": self.mark}, "text": True, "start_new_session": True}
        more |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.outer = subprocess.Popen(words, **more)
        said = self.outer.stdout.readline()
        if said != "up\n":
            said += self.outer.stdout.read()
            self.close()
            raise RuntimeError(f"the hosts did not come up: {said}")
        self.init = int(Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text())
        self.commands = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Take everything down, and make sure of it."""
        self.outer.kill()  # and with it the first process inside, and with that one all others
        self.outer.communicate()
        for command in getattr(self, "commands", ()):
            command.process.wait()
        deadline = time.monotonic() + 5
        while (left := alive(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"still alive after the hosts were taken down: {left}"

    def inside(self, *words):
        """The words that run a command in the namespaces of the bridge."""
        user = ["--user", "--preserve-credentials"] if os.geteuid() else []
        entered = ("--net", "--mount", "--uts", "--ipc", "--pid")
        return ["nsenter", f"--target={self.init}", *user, *entered, *map(str, words)]

    def call(self, *words):
        subprocess.run(self.inside(*words), check=True, capture_output=True, text=True, timeout=20)

    def configure(self, number, *words):
        """Run a command about a host's own network, which ends at once: ip, tc, sysctl."""
        self.call("nsenter", f"--net=/run/netns/host{number}", *words)

    def add_interface(self, number):
        """A second interface, eth1, which leads nowhere; and the host's name now means its address."""
        self.configure(number, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "nowhere")
        for name in ("eth1", "nowhere"):
            self.configure(number, "ip", "link", "set", name, "up")
        self.configure(number, "ip", "address", "add", f"192.168.7.{number}/24", "dev", "eth1")
        names = self.folder / "hosts"  # bound into the namespaces: it must stay the same file
        names.write_text(names.read_text().replace(f"10.0.0.{number} host", f"192.168.7.{number} host"))

    def close_ports(self, number):
        """A firewall: TCP packets to other hosts leave for an address that is nobody's."""
        nobody = ("10.0.0.99", "lladdr", "02:00:00:00:00:63", "dev", "eth0")
        self.configure(number, "ip", "neighbour", "add", *nobody)
        self.configure(number, "ip", "route", "add", "default", "via", "10.0.0.99", "table", 99)
        rule = ("ip", "rule", "add", "iif", "lo", "ipproto", "tcp", "to", "10.0.0.0/24")
        self.configure(number, *rule, "priority", 30, "lookup", 99)

    def open_ports(self, number, ports):
        """The firewall lets them pass: "29500", or "50000-50100"."""
        for end in ("sport", "dport"):
            rule = ("ip", "rule", "add", "iif", "lo", "ipproto", "tcp", end, ports)
            self.configure(number, *rule, "priority", 10, "lookup", "main")

    def cut(self, number):
        """Pull the cable of a host, at the switch's end: on the host, addresses and routes stay."""
        self.call("ip", "link", "set", f"link{number}", "down")

    def mend(self, number):
        self.call("ip", "link", "set", f"link{number}", "up")

    def run(self, number, *words, environment=None, folder=None):
        """Start a command on a host, in the host's own folder. Its name for the folder is the host's."""
        self.commands.append(Command(self, number, words, environment or {}, folder or f"host{number}"))
        return self.commands[-1]


class Command:
    """A command on a host. What it and its children write, in one file, is its output."""

    def __init__(self, hosts, number, words, environment, folder):
        self.mark = f"{hosts.mark}-{len(hosts.commands)}-"
        self.folder, self.name = hosts.folder / folder, f"host{number}"
        self.temporary = self.folder / ".tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / f".log-{len(hosts.commands)}"
        start = 'hostname "$1" && cd "$2" && shift 2 && exec "$@"'
        enter = ("nsenter", f"--net=/run/netns/{self.name}", "unshare", "--uts")
        words = hosts.inside(*enter, "sh", "-c", start, "sh", self.name, self.folder, *words)
        own = {"HOME": str(self.folder), "TMPDIR": str(self.temporary), "RUNGS_MARK": self.mark}
        own |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        not_here = (
            "PET_LOCAL_ADDR",
            "GLOO_SOCKET_IFNAME",
        )  # of conftest.py: here the names of all hosts resolve
        usual = {name: value for name, value in os.environ.items() if name not in not_here}
        environment = usual | own | environment
        more = {"env": environment, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, **more)
        self.started = time.monotonic()

    def output(self):
        return self.log.read_text()

    def wait_for(self, text, limit, after=0):
        """Wait until a text stands in the output, beyond `after` characters. Returns the seconds it took."""
        start = time.monotonic()
        while text not in self.output()[after:]:
            ended = self.process.poll() is not None and text not in self.output()[after:]
            if ended or time.monotonic() - start > limit:
                why = "it ended" if ended else f"{limit} seconds have passed"
                raise AssertionError(f"{why} without {text!r} from {self.name}. It wrote:\n{self.output()}")
            time.sleep(0.02)
        return time.monotonic() - start

    def finish(self, limit):
        """Wait until it ends. Returns its status."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            why = f"{self.name} still runs after {limit:.1f} seconds"
            raise AssertionError(f"{why}. It wrote:\n{self.output()}") from None

    def alive(self, pattern=""):
        """The pids of its living processes with these words, as seen from outside."""
        words = [(pid, words) for pid, words in alive(self.mark) if not words.startswith("nsenter ")]
        return [pid for pid, words in words if re.search(pattern, words)]

    def agent(self):
        return self.alive(r"/torchrun ")[0]

    def workers(self):
        return self.alive(r" -u \S*\.py")

    def kill(self, pid, number=signal.SIGKILL):
        os.kill(pid, number)


def torchrun(*options, nodes, conf, endpoint="host1:29400", restarts=3):
    """The words and the environment that start an agent of lesson 06b."""
    words = [launcher.command("04_ddp_torchrun", 1)[0][0], "--nnodes", nodes, "--nproc-per-node", 1]
    words += ["--max-restarts", restarts, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    words += ["--rdzv-id", "rungs", "--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())]
    words += [launcher.ROOT / "lessons/06b_preemption.py", *options]
    return words, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
