"""Where does the time of a small DDP step go?

    python tools/bench/small.py                         a table, and a dated file in results/small
    python tools/bench/small.py --pages FILE.json       measure nothing: write README.md from this file

Lesson 04's model on 60 images in each of two processes, one thread each. Seven kinds of steps take turns, 20
of one kind at a time. A repeat takes half a minute: once with free processes, and once with each process bound
to a core.
"""

import argparse
import contextlib
import copy
import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path

import pieces
import report
import rows

import bench

RESULTS = rows.HERE / "results" / "small"
STEPS = 20
ROUNDS = int(os.environ.get("ROUNDS_OF_SMALL", 10))  # the test asks for one
KINDS = {
    "nothing sent": "",
    "one number": "an all-reduce of a single number",
    "one flat all-reduce": "all gradients in one tensor, after backward",
    "DDP": "lesson 04",
    "DDP, views": "`gradient_as_bucket_view`",
    "DDP, static": "`static_graph`",
    "DDP, both": "both options",
}
BOUND = {"free": "where the system likes", "bound": "a core for each"}
ENDS = ("<!-- small ", "<!-- end -->")


def work() -> dict:
    """Milliseconds of a step of each kind, and its CPU time."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import workload

    torch.manual_seed(0)
    plain = workload.ConvNet((1, 28, 28))
    torch.manual_seed(dist.get_rank())  # different images, so gradients differ until they are averaged
    images, labels = torch.rand(60, 1, 28, 28), torch.randint(10, (60,))
    options = {"views": {"gradient_as_bucket_view": True}, "static": {"static_graph": True}}
    options |= {"": {}, "both": options["views"] | options["static"]}
    models = {
        f"DDP, {name}".strip(", "): DistributedDataParallel(copy.deepcopy(plain), **given)
        for name, given in options.items()
    }
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9) for name, model in models.items()
    }
    number = torch.ones(1)

    def step(kind):
        name = kind if kind in models else "DDP"
        model, optimizer = models[name], optimizers[name]
        optimizer.zero_grad()
        with contextlib.nullcontext() if kind in models else model.no_sync():
            torch.nn.functional.cross_entropy(model(images), labels).backward()
        if kind == "one number":
            dist.all_reduce(number)
        elif kind == "one flat all-reduce":
            gradients = [parameter.grad for parameter in model.parameters()]
            flat = torch.cat([gradient.view(-1) for gradient in gradients])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        optimizer.step()
        return model

    for kind in KINDS:  # before time is taken: each sends what its name says
        gradients = torch.cat([parameter.grad.flatten() for parameter in step(kind).parameters()])
        both = [torch.empty_like(gradients) for _ in range(2)]
        dist.all_gather(both, gradients)
        assert torch.equal(*both) == (kind not in ("nothing sent", "one number")), kind
    assert number == 2, "the sum of one number of each"

    found = {kind: {"seconds": [], "cpu_seconds": []} for kind in KINDS}
    for turn in range(ROUNDS + 1):  # the first one warms up
        for kind, times in found.items():
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                step(kind)
            if turn:
                times["seconds"].append(1000 * (time.perf_counter() - begin) / STEPS)
                times["cpu_seconds"].append(1000 * (time.process_time() - used) / STEPS)
    return {
        kind: {name: statistics.median(values) for name, values in times.items()}
        for kind, times in found.items()
    }


def run(folder: Path, bound: str, **given: str) -> dict:
    environment = {"STORE": str(folder / "store"), "WORLD_SIZE": "2", "BOUND": bound, **given}
    both = [
        rows.start([sys.executable, Path(__file__)], folder, RANK=str(rank), **environment) for rank in (0, 1)
    ]
    said, _ = [rows.finish(process)[0] for process in both]
    return json.loads(said)


def measure(repeats: int) -> dict:
    found = {}
    for repeat in range(repeats):
        for bound in BOUND:
            with rows.empty_folder() as folder:
                bench.collect(found, {bound: run(folder, bound)})
        print(f"repeat {repeat + 1} of {repeats}", flush=True)
    return found


def section(result: dict) -> str:
    free, bound = (result["rows"][name] for name in BOUND)
    lines = []
    for kind, words in KINDS.items():
        line = [f"{kind}: {words}" if words else kind]
        for both in (free, bound):
            line.append(report.middle(both[kind]["seconds"], 1, 2))
            line.append(report.middle(both[kind]["cpu_seconds"], 1, 2))
            line.append(f"{share(both, kind):.2f}")
        lines.append(line)
    head = ["milliseconds of a step", "free", "CPU", "speed", "bound", "CPU", "speed"]
    waiting = 1000 * more(free, "one number", "nothing sent")
    rest = 1000 * more(free, "DDP", "one number")
    return f"""Measured on {report.where(result)}, {result["date"]}, by `python tools/bench/small.py`: lesson 04's model on 60 images in each of two processes. The kinds of steps take turns in the same processes; each number is the median of {result["repeats"]} repeats. In the last three columns, each process is bound to its own core. "Speed" is relative to a step that sends nothing.

{report.table(head, lines)}

With DDP, two processes reach {share(free, "DDP"):.2f} of the speed of two processes that send nothing {report.verdict(share(free, "DDP"), 0.8)}; the repeats range from {spread(free)}. Bound to cores, they reach {share(bound, "DDP"):.2f} {report.verdict(share(bound, "DDP"), 0.8)}, ranging from {spread(bound)}. Waiting for each other costs {waiting:,.0f} microseconds per step even without gradients, as the all-reduce of one number shows. Everything else in DDP costs {rest:,.0f} microseconds more: hooks, copies into and out of the bucket, and gloo's threads, which also need the cores.
"""


def share(both: dict, kind: str) -> float:
    return report.ratio(both["nothing sent"]["seconds"], both[kind]["seconds"])


def spread(both: dict) -> str:
    pairs = zip(both["nothing sent"]["seconds"], both["DDP"]["seconds"], strict=True)
    shares = [nothing / ddp for nothing, ddp in pairs]
    return f"{min(shares):.2f} to {max(shares):.2f}"


def more(both: dict, kind: str, than: str) -> float:
    return statistics.median(both[kind]["seconds"]) - statistics.median(both[than]["seconds"])


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--pages", type=Path, help="measure nothing: write README.md from this file")
    arguments = parser.parse_args()
    if arguments.pages:
        result = json.loads(arguments.pages.read_text())
        words = pieces.replaced(report.PAGE.read_text(), section(result), arguments.pages.name, ENDS)
        report.PAGE.write_text(words)
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    date = datetime.date.today().isoformat()
    result = {"date": date, "machine": bench.machine(), "versions": bench.versions()}
    result |= {"repeats": arguments.repeats, "rows": measure(arguments.repeats)}
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{bench.name_of(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{section(result)}\nKept: {path}")


if __name__ == "__main__":
    if "BOUND" in os.environ:  # as one of the ranks
        if os.environ["BOUND"] == "bound":  # before there are threads: they inherit it
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
        import ranks

        ranks.together(work)
    else:
        main()
