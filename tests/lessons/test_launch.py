"""The recipes for a container, for Kubernetes and for SageMaker: they keep to their schemas, agree with the
repository and with themselves, and what they run is run, on hosts that are network namespaces."""

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.lines import check_curve
from tools import launcher
from tools.testbed import hosts

ROOT = launcher.ROOT
FOLDER = ROOT / "lessons/launch"
FILES = ("Containerfile", "kubernetes.yaml", "sagemaker.json")
CONTAINER, KUBERNETES, SAGEMAKER = ((FOLDER / name).read_text() for name in FILES)
PAGE = (FOLDER / "README.md").read_text()
CLOUD = (FOLDER / "cloud.md").read_text()
LESSON = "06b_preemption"
SIZES = ("--train-size", 1200, "--test-size", 300, "--epochs", 8)

HADOLINT = Path(sys.executable).parent / "hadolint"

needs_tools = pytest.mark.skipif(
    not (HADOLINT.exists() and all(map(find_spec, ("botocore", "kubernetes_validate")))),
    reason="needs lessons/launch/requirements.txt: make tools installs it",
)


# ---- the container ----


def instructions(text):
    """(FROM, COPY, RUN..., the rest) of a Containerfile, comments left out and lines joined."""
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def check_container(text):
    lint = subprocess.run([HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True)
    assert not (lint.returncode or lint.stdout), f"hadolint: {lint.stdout}{lint.stderr}"
    python = re.search(r"python:(\d\.\d+)", text)[1]
    conda = re.search(r"python=(\S+)", (ROOT / "environment.yml").read_text())[1]
    assert python == conda, f"python {python}, but environment.yml has {conda}"
    copied = []
    for word, rest in instructions(text):
        if word == "COPY":
            *sources, _ = rest.split()
            copied += sources
            tracked = subprocess.run(["git", "ls-files", *sources], cwd=ROOT, capture_output=True, text=True)
            assert tracked.stdout, f"COPY {rest}: not in the repository"
        for path in re.findall(r"(?:-r |\b)([\w/]+\.txt|lessons/\S+\.py)", rest):
            in_a_copied_folder = any(Path(path).is_relative_to(source) for source in copied)
            assert in_a_copied_folder and (ROOT / path).exists(), f"{path} is not in the image"


# ---- Kubernetes ----


def check_kubernetes(text):
    import kubernetes_validate
    import yaml

    documents = list(yaml.safe_load_all(text))
    for document in documents:
        for version in ("1.33", "1.37"):  # the oldest that the recipe names, and the newest there is
            kubernetes_validate.validate(document, version, strict=True)
    service, claim, job = documents
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = torchrun_options(container["args"][0])
    pods, name = spec["completions"], job["metadata"]["name"]
    endpoint = f"{name}-0.{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes.get(mount["name"]) for mount in container["volumeMounts"]}
    snapshots = mounts.get(options["--out"], {}).get("persistentVolumeClaim", {}).get("claimName")
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    limits = [int(options[name]) for name in ("--time-limit", "--shutdown-timeout")]
    limits.append(pod.get("terminationGracePeriodSeconds", 30))
    named = service["metadata"]["name"]
    assert spec["parallelism"] == pods, "not all pods run at once"
    assert options["--nnodes"] == f"1:{pods}", "--nnodes is not the number of pods"
    assert options["--rdzv-endpoint"] == endpoint, f"--rdzv-endpoint is not {endpoint}"
    assert service["spec"].get("clusterIP") == "None", "the service is not headless"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}, "it selects no pod"
    assert pod.get("subdomain") == named, "the pods' subdomain is not the service"
    assert gpus == int(options["--nproc-per-node"]), f"{gpus} GPUs for {options['--nproc-per-node']}"
    assert snapshots == claim["metadata"]["name"], "--out is not on the claimed disk"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"], "a disk that only one node may write to"
    assert mounts.get("/dev/shm", {}).get("emptyDir", {}).get("medium") == "Memory", "no memory at /dev/shm"
    assert limits == sorted(set(limits)), "a pod is killed before its agent, or its processes are"


def torchrun_options(command):
    words = shlex.split(command.replace("$((JOB_COMPLETION_INDEX == 0))", "INDEX"))
    assert words[:2] == ["exec", "torchrun"], "without exec, bash may stay and not pass SIGTERM on"
    return dict(itertools.pairwise(words))


# ---- SageMaker ----


def check_sagemaker(text):
    """By what botocore says that CreateTrainingJob takes. Nothing here calls Amazon."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"))
    request, shape = json.loads(text), model.operation_model("CreateTrainingJob").input_shape
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()
    for wrong, words in unlike(request, shape):
        assert not wrong, words
    parameters, stop = request["HyperParameters"], request["StoppingCondition"]
    program = parameters.get("sagemaker_program", "")
    (channel,) = request["InputDataConfig"]
    disk = channel["DataSource"].get("FileSystemDataSource", {})
    account = request["RoleArn"].split(":")[4]
    assert parameters.get("sagemaker_torch_distributed_enabled") == "true", "no torch_distributed"
    assert (ROOT / "lessons" / program).is_file(), f"sagemaker_program {program} is no lesson"
    snapshots = f"/opt/ml/input/data/{channel['ChannelName']}"
    assert parameters.get("out") == snapshots, "--out is not on the disk that the machines share"
    assert disk.get("FileSystemAccessMode") == "rw", "the lesson may not write to that disk"
    assert request.get("VpcConfig"), "a file system is reached from its own network only"
    waits_long = stop["MaxRuntimeInSeconds"] <= stop.get("MaxWaitTimeInSeconds", 0)
    assert waits_long, "a spot job waits for at least as long as it may run"
    assert request["EnableManagedSpotTraining"], "not on spot instances"
    assert set(re.findall(r"\d{12}", text)) == {account}, "more than one account"
    image = request["AlgorithmSpecification"]["TrainingImage"]
    assert image.endswith("/rungs:sagemaker"), "not the image of the Containerfile's second stage"


def unlike(value, shape, path=""):
    """Where a value breaks the rules that botocore leaves to the server: patterns, choices, limits."""
    rules = shape.metadata
    if shape.type_name == "structure":
        for name, part in value.items():
            if name in shape.members:
                yield from unlike(part, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "map":
        for name, part in value.items():
            yield from unlike(name, shape.key, f"{path}.{name}")
            yield from unlike(part, shape.value, f"{path}.{name}")
    elif shape.type_name == "string":
        pattern, choices = rules.get("pattern", ".*"), rules.get("enum")
        yield not re.fullmatch(pattern, str(value)), f"{path}: {value} is not like {pattern}"
        yield choices and value not in choices, f"{path}: {value} is none of {choices}"
        yield len(str(value)) > rules.get("max", 1e9), f"{path} is too long"
    elif shape.type_name == "integer" and isinstance(value, int):
        yield value > rules.get("max", 1e9), f"{path}: {value} is more than {rules.get('max')}"


# ---- right, and wrong ----

CHECKS = {
    "container": (check_container, CONTAINER),
    "kubernetes": (check_kubernetes, KUBERNETES),
    "sagemaker": (check_sagemaker, SAGEMAKER),
}


@needs_tools
@pytest.mark.parametrize("kind", CHECKS)
def test_a_recipe_is_right(kind):
    check, text = CHECKS[kind]
    check(text)


MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())
ROWS = [(kind, *row) for kind, rows in MISTAKES.items() for row in rows]


@needs_tools
@pytest.mark.parametrize(("kind", "right", "wrong", "words"), ROWS)
def test_a_mistake_in_a_recipe_is_noticed(kind, right, wrong, words):
    check, text = CHECKS[kind]
    assert right in text
    with pytest.raises(Exception, match=re.escape(words)):
        check(text.replace(right, wrong, 1))


# ---- the page ----


def number_after(words, text):
    return int(re.search(rf"{words}(\d+)", text)[1])


def test_the_page_says_what_the_recipes_can_cost():
    pods = number_after("parallelism: ", KUBERNETES)
    seconds = number_after("activeDeadlineSeconds: ", KUBERNETES)
    cost = f"{seconds / 3600:g} hours | {pods} pods: {pods * seconds / 3600:g} "
    assert f"`activeDeadlineSeconds`, {cost}" in CLOUD
    request = json.loads(SAGEMAKER)
    machines = request["ResourceConfig"]["InstanceCount"]
    hours = request["StoppingCondition"]["MaxRuntimeInSeconds"] / 3600
    assert f"`MaxRuntimeInSeconds`, {hours:g} hour;" in CLOUD
    assert f"{machines} instances: {machines * hours:g} instance-hours" in CLOUD
    slurm = (FOLDER / "slurm.sbatch").read_text()
    nodes = number_after("--nodes=", slurm)
    starts = number_after("REQUEUES:-", slurm)
    assert "--time=00:30:00" in slurm
    each = nodes / 2
    assert f"{nodes} nodes: {each:g} node-hour per start, {each * (starts + 1):g} in all" in CLOUD


def test_the_page_shows_the_command_that_sagemaker_gives():
    words, _ = as_the_toolkit_does(json.loads(SAGEMAKER), ["algo-1", "algo-2"], "algo-1")
    words[words.index("--nproc_per_node") + 1] = "GPUS"
    assert " ".join(map(str, words)) + "\n" in CLOUD
    assert "sagemaker-training==5.1.4" in CONTAINER


# ---- what they run ----


@pytest.fixture
def network(tmp_path):
    with hosts.Hosts(tmp_path / "network", 2) as network:
        yield network


@pytest.fixture
def image(tmp_path):
    """The folder that the Containerfile makes, with what it copies and nothing else."""
    folder = tmp_path / "image"
    for word, rest in instructions(CONTAINER.split("FROM lessons")[0]):
        if word == "COPY":
            source, target = rest.split()
            target = folder / source if target == "." else folder / target
            ignored = shutil.ignore_patterns("__pycache__", "out")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=ignored)
            else:
                folder.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, target)
    return folder


def enter(network, number, name, folder, words, environment):
    """Start a command on a host as in a container there: with this host name, in this folder."""
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    inside = ["sh", "-c", 'hostname "$1" && cd "$2" && shift 2 && exec "$@"', "sh", name, folder, *words]
    return network.run(number, *inside, environment={"PATH": path, **environment})


def start_pods(network, image, disk):
    import yaml

    job = list(yaml.safe_load_all(KUBERNETES))[-1]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    name = job["metadata"]["name"]
    (script,) = container["args"]
    script = f"{script.strip()} {' '.join(map(str, SIZES))}".replace("/snapshots", str(disk))
    pods = []
    for index in reversed(range(job["spec"]["completions"])):
        environment = {"JOB_COMPLETION_INDEX": str(index), "POD_IP": f"10.0.0.{index + 1}"}
        for variable in container["env"]:
            environment.setdefault(variable["name"], variable.get("value"))
        words = [*container["command"], script]
        pods.append(enter(network, index + 1, f"{name}-{index}", image, words, environment))
    return pods[::-1]


def wait_until_it_listens(command, port, limit=60):
    """Wait until a process of this command waits for others at a port of its host."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        for pid in command.alive(r"/torchrun "):
            for name in ("tcp", "tcp6"):
                if re.search(rf":{port:04X} \S+ 0A ", Path(f"/proc/{pid}/net/{name}").read_text()):
                    return
        time.sleep(0.1)
    pytest.fail(f"nobody listens at port {port} of {command.name}. It wrote:\n{command.output()}")


@pytest.mark.night
@needs_tools
def test_kubernetes_pods_train_are_told_to_stop_and_go_on(network, image, tmp_path, reference):
    disk, known = tmp_path / "disk", network.folder / "hosts"
    disk.mkdir()
    with open(known, "a") as file:  # what Kubernetes tells a pod of itself
        file.write("10.0.0.1 rungs-0\n10.0.0.2 rungs-1\n")
    pods = start_pods(network, image, disk)
    wait_until_it_listens(pods[0], 29400)
    time.sleep(1)  # and what it tells DNS, which takes it a while
    with open(known, "a") as file:
        file.write("10.0.0.1 rungs-0.rungs\n10.0.0.2 rungs-1.rungs\n")
    pods[0].wait_for("epoch  1 |", 120)

    for pod in pods:
        pod.kill(pod.agent(), signal.SIGTERM)  # as to the first process of a container
    since = time.monotonic()
    for pod in pods:
        pod.finish(100)
    assert time.monotonic() - since < 60, "more than half of terminationGracePeriodSeconds"
    assert "told to stop: saved" in pods[0].output()

    pods = start_pods(network, image, disk)
    for pod in pods:
        assert pod.finish(150) == 0, pods[0].output() + pods[1].output()
    assert "resumed in epoch" in pods[0].output()
    check_curve(disk, LESSON, reference(*SIZES), 2)


def as_the_toolkit_does(request, names, name):
    """The command that SageMaker's toolkit gives on a machine without GPUs, and what it adds to the
    environment. (sagemaker-training 5.1.4, torch_distributed.py and mapping.py; sagemaker-pytorch-training
    3.0.0, training.py.)"""
    words = ["torchrun", "--nnodes", len(names), "--nproc_per_node", 1, "--master_addr", names[0]]
    words += ["--master_port", "7777", "--node_rank", names.index(name)]
    words += [request["HyperParameters"]["sagemaker_program"]]
    for key, value in sorted(request["HyperParameters"].items()):
        if "sagemaker_" not in key:
            words += [f"--{key}", value]
    environment = {"SM_HOSTS": json.dumps(names), "SM_CURRENT_HOST": name, "SM_NUM_GPUS": "0"}
    environment |= {"SM_TRAINING_ENV": json.dumps({"current_host": name}), "NCCL_SOCKET_IFNAME": "eth0"}
    return words, environment | {"MASTER_ADDR": names[0], "MASTER_PORT": "7777"}


@pytest.mark.night
def test_sagemaker_runs_it_on_two_machines(network, image, reference):
    request, names = json.loads(SAGEMAKER), ["algo-1", "algo-2"]
    sizes = ("--train-size", 6000, "--test-size", 300, "--epochs", 2)  # 50 steps an epoch: a snapshot
    with open(network.folder / "hosts", "a") as file:
        file.write("10.0.0.1 algo-1\n10.0.0.2 algo-2\n")
    local, machines = request["HyperParameters"]["out"], []
    for number, name in enumerate(names, 1):
        words, environment = as_the_toolkit_does(request, names, name)
        words = list(map(str, [*words, *sizes]))
        words[words.index(local)] = str(network.shared)
        machines.append(enter(network, number, name, image / "lessons", words, environment))
    for machine in machines:
        assert machine.finish(150) == 0, machine.output()
    check_curve(network.shared, LESSON, reference(*sizes), 2)
    assert len(list(network.shared.glob("*.snapshot"))) == 2


# ---- a machine that is taken away ----


@pytest.mark.night
def test_a_run_that_is_kept_in_a_drive_goes_on_on_the_next_machine(tmp_path):
    """The cell of free_gpus.md, in a folder that stands for a machine, with a folder for the Drive."""
    page = (FOLDER / "free_gpus.md").read_text()
    (cell,) = [block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "KEPT=" in block]
    options = "--snapshot-every 5 --epochs 3 --train-size 4800 --test-size 60"
    for old, new in {
        "KEPT=/content/drive/MyDrive/rungs": f"KEPT={tmp_path}/drive",
        "lessons/06b": f"{ROOT}/lessons/06b",
        "--snapshot-every 20": options,
        "sleep 20": "sleep 0.2",
    }.items():
        assert cell.count(old) == 1
        cell = cell.replace(old, new)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = []
    for machine, until in (("first", "epoch  1"), ("next", "nothing")):  # it is killed then, or ends before
        log = tmp_path / machine / "log"
        log.parent.mkdir()
        with open(log, "w") as file:
            more = {"stdout": file, "stderr": file, "env": environment, "start_new_session": True}
            running = subprocess.Popen(["bash", "-c", cell], cwd=log.parent, **more)
        deadline = time.monotonic() + 200
        while running.poll() is None and until not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        # A snapshot may be replaced while it is copied.
        said.append(re.sub("(?m)^.*cannot stat.*\n?", "", log.read_text()).splitlines())
    first, (resumed, *epochs) = said
    assert first[0].startswith("epoch  1") and not first[-1].startswith("epoch  3")
    assert re.fullmatch(r"resumed in epoch [123]( after step \d+)?", resumed)
    assert epochs[-1].startswith("epoch  3")
    assert (tmp_path / f"drive/{LESSON}.pt").exists()


# ---- the ways to meet that the page lists ----

TABLE = PAGE.partition("## How processes meet")[2].partition("\n## ")[0]
WAYS = re.findall(r"^\| `([\w :./-]+?)[` ]", TABLE, re.M)


@pytest.mark.parametrize("way", WAYS[2:])
def test_two_processes_meet(forked, way):
    """By the commands of the docstring. Tests of hosts run torchrun's two ways, the first of the table."""
    result = forked([sys.executable, FOLDER / "ways_to_meet.py", way])
    assert (result.code, result.stdout) == (0, f"{way}: 2 processes have met\n"), result.stderr
