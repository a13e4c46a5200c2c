"""A SLURM cluster on this machine: slurmctld and two slurmd, children of the test, in one folder."""

import contextlib
import getpass
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tools import launcher

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
# An ordinary user has no sbin in the PATH.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}

CONFIGURATION = """
ClusterName=rungs
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
FirstJobId={first_job}
AuthType=auth/munge
CryptoType=crypto/munge
# A job that goes back into the queue is held until the credentials of its first start have expired: 121 s.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin={tasks}
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=10
# Else a node drains that has fewer cores than it says.
SlurmdParameters=config_overrides
# What pretends to be a GPU is an empty file. gres.conf says that it shall not hide the true ones.
GresTypes=gpu
NodeName=node[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port={nodes} \
CPUs={cpus} RealMemory=8000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """The programs that this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def take_hundred():
    """A hundred ports that no other cluster on this machine has: the socket that says so, and the first one.

    The daemons' ports must be known before they start, and the sbatch file makes the port of a job from
    its number. Ports of the system's choice would be free now and somebody's a moment later, so these lie
    below the ones it gives out. Who binds a hundred's name has it: the name lies in no folder, and it is
    gone with the process.
    """
    for hundred in range(101, 200):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            claim.bind(f"\0rungs-slurm-{hundred}")
            return claim, hundred * 100
        claim.close()
    raise RuntimeError("no hundred free ports between 10100 and 19999")


def wait_until(answer, limit, what, every=0.05):
    """The first true answer; fails after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (value := answer()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit} seconds: {what() if callable(what) else what}")
        time.sleep(every)
    return value


class Cluster:
    """Two nodes of four CPUs each. `with Cluster(folder, alive) as cluster: cluster.submit(...)`"""

    def __init__(self, folder, alive, tasks="task/none", cpus=4):
        self.folder = folder
        self.alive = alive
        self.daemons = []
        self.settings = {"tasks": tasks, "cpus": cpus}
        self.mark = f"rungs-{uuid.uuid4().hex}"
        self.environment = os.environ | {
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "RUNGS_MARK": self.mark,
        }

    def __enter__(self):
        self.claim, first = take_hundred()
        for name in ("home", "tmp", "state", "spool-node1", "spool-node2"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o700)
        settings = self.settings | {
            "user": getpass.getuser(),
            "folder": self.folder,
            "first_job": first + 1,  # what the jobs of this cluster are called decides what their ports are
            "nodes": f"{first + 97}-{first + 98}",
            "controller": first + 99,
        }
        written = {
            "slurm.conf": CONFIGURATION.format(**settings),
            "gres.conf": f"Name=gpu File={self.folder}/gpu[0-1] Flags=no_gpu_env\n",
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
            "plugstack.conf": "",
            "gpu0": "",
            "gpu1": "",
        }
        for name, text in written.items():
            (self.folder / name).write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        try:
            self.start(
                "munged",
                "--foreground",
                "--force",
                f"--key-file={key}",
                f"--socket={self.folder}/munge.socket",
                f"--pid-file={self.folder}/munged.pid",
                f"--log-file={self.folder}/munged.log",
                f"--seed-file={self.folder}/munged.seed",
            )
            wait_until((self.folder / "munge.socket").exists, 20, self.logs)
            self.start("slurmctld", "-D", "-i")
            wait_until(lambda: answers(first + 99), 20, self.logs)
            for node in ("node1", "node2"):
                self.start("slurmd", "-D", "-N", node)
            wait_until(lambda: self.call("sinfo", "-h", "-o", "%T %D") == "idle 2\n", 20, self.logs)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        left = self.stop()
        assert not left, f"still alive after the cluster's end: {left}"

    def start(self, *words):
        with open(self.folder / "daemons.log", "a") as log:
            daemon = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.daemons.append(daemon)

    def stop(self):
        """End all jobs and daemons. Returns the processes that live on all the same, and ends those too."""
        if len(self.daemons) == 4:
            self.call("scancel", "--signal=KILL", "--full", "--user", getpass.getuser(), check=False)
            self.call("scancel", "--user", getpass.getuser(), check=False)
            deadline = time.monotonic() + 15
            while self.call("squeue", "--noheader", check=False) and time.monotonic() < deadline:
                time.sleep(0.05)
        for daemon in reversed(self.daemons):  # munged last: the others need it to say goodbye
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        left = self.alive(self.mark)
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.claim.close()
        return left

    def call(self, *words, check=True, environment=None, cwd=None, limit=30):
        """What a command of SLURM's prints."""
        result = subprocess.run(
            list(map(str, words)),
            cwd=cwd or self.folder,
            env=self.environment | (environment or {}),
            timeout=limit,
            capture_output=True,
            text=True,
        )
        assert not check or result.returncode == 0, f"{words}: {result.stdout}{result.stderr}\n{self.logs()}"
        return result.stdout

    def logs(self):
        """The last words of all daemons."""
        found = []
        for path in sorted(self.folder.glob("*.log")):
            found.append(f"{path.name}:\n{path.read_text()[-2000:]}")
        return "\n".join(found)

    def submit(self, folder, script, *arguments, options=(), environment=None):
        """`sbatch`, typed in the repository's root; the job runs in a folder of its own."""
        folder.mkdir(parents=True)
        options = ("--parsable", f"--chdir={folder}", f"--output={folder}/log", *options)
        number = self.call("sbatch", *options, script, *arguments, environment=environment, cwd=launcher.ROOT)
        return Job(self, number.strip(), folder)


class Job:
    def __init__(self, cluster, number, folder):
        self.cluster = cluster
        self.number = number
        self.folder = folder

    def log(self):
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def show(self, field=None):
        """What `scontrol show job` says: all of it, or one field."""
        text = self.cluster.call("scontrol", "show", "job", self.number)
        return re.search(rf"\b{field}=(\S*)", text)[1] if field else text

    def everything(self):
        """For the message of a failed test."""
        return f"{self.show()}\n{self.log()}\n{self.cluster.logs()}"

    def wait_for_log(self, pattern, limit=180, count=1):
        """Wait until the log has this line so many times."""
        looks = itertools.count(1)

        def found():
            # A look into the log every 20 ms; at the state, which costs 20 ms to ask for, once a second.
            asks_for_the_state = next(looks) % 50 == 0
            # A job that has ended will write nothing more.
            over = asks_for_the_state and self.show("JobState") in ENDED
            has = len(re.findall(pattern, self.log(), re.M)) >= count
            assert has or not over, f"it ended without: {pattern}\n{self.everything()}"
            return has

        wait_until(found, limit, lambda: f"{pattern}\n{self.everything()}", every=0.02)

    def finish(self, limit=240):
        """Wait for the job's end; returns its state."""
        wait_until(lambda: self.show("JobState") in ENDED, limit, self.everything, every=0.2)
        # Its last processes may still be going down.
        wait_until(lambda: not self.processes(), 15, lambda: f"{self.processes()}\n{self.everything()}")
        return self.show("JobState")

    def processes(self):
        """(pid, command) of what runs on the nodes for this job."""
        ours = self.cluster.alive(self.cluster.mark)
        found = []
        for process in self.cluster.alive(f"SLURM_JOB_ID={self.number}\0"):
            if process in ours:  # another cluster on this machine may have a job of this number
                found.append(process)
        return found

    def workers(self):
        """The pids of those that train."""
        others = ("torchrun", "bash", "spawn_on_node.py")
        found = []
        for pid, words in self.processes():
            is_lesson = "06b_preemption.py" in words and not any(other in words for other in others)
            if is_lesson or "multiprocessing.spawn" in words:  # mp.spawn's do not name the script
                found.append(pid)
        return sorted(found)

    def cancel(self):
        self.cluster.call("scancel", "--signal=KILL", "--full", self.number, check=False)
        self.cluster.call("scancel", self.number, check=False)
