"""Does a check refuse a right answer with some seed? Every check, with the solution and the other solution of
its exercise, on many seeds.

    python tests/exercises/sweep.py --seeds 2000 --jobs 2      all exercises
    python tests/exercises/sweep.py 01 03a --seeds 20          two of them

Expect for each exercise and submission the number of runs and of refusals, and how near a right answer came
to a refusal for its rounding: the largest error, as a part of the tolerance, and where. Each refusal names
the command that repeats it in the sandbox. The grader starts new processes for each run; here, a process for
each rank lives on from seed to seed, in no sandbox: only recorded solutions run. A test that kills processes
or looks at files still gets real runs, of --real seeds at most. A test of memory is left out: it does not
depend on a seed."""

import argparse
import contextlib
import datetime
import functools
import io
import json
import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

import mutants
import numpy
import pytest
from grader import comparing, plugin, ranks, testing
from grader.exercises import exercise, manifest
from grader.results import Verdict
from grader.settings import HERE, ROOT, SOLUTIONS

SECONDS = 120  # for a run, until its ranks count as hanging
SHOWN = 5  # refusals of a test


# ---- in each rank -----------------------------------------------------------------------------


def live(given, rank, world_size, meeting):
    """Run one body after another, as worker.live() runs one."""
    import fork_server
    import linux_proc
    import torch
    import torch.distributed as dist
    import worker
    from torch.distributed import distributed_c10d

    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    references = os.open(linux_proc.CLEAR, os.O_WRONLY) if linux_proc.IS_HERE else None
    originals = {}  # torch.distributed's own calls, and what stands in place of forbidden ones
    compiled = {}
    if meeting:
        where = {"init_method": f"file://{meeting}", "rank": rank, "world_size": world_size}
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=SECONDS), **where)
    folder = Path(tempfile.gettempdir())
    while True:
        try:
            job = fork_server.unpack(given.recv_bytes())
        except EOFError:
            os._exit(0)
        if not originals:  # the first run: all runs of an exercise forbid the same
            worker.take_away(job["forbidden"])
            for name in worker.COLLECTIVES.split():
                if hasattr(dist, name):
                    originals[name] = getattr(dist, name)
        for name, call in originals.items():
            setattr(dist, name, call)
            setattr(distributed_c10d, name, call)
        me = worker.Me(rank, world_size, folder, None, lambda call: None, references)
        worker.watch(me, job["files"])
        check = sys.modules["the_check"] = type(sys)("the_check")
        try:
            if job["source"] not in compiled:
                compiled[job["source"]] = compile(job["source"], "<the check>", "exec")
            exec(compiled[job["source"]], vars(check))
            student = worker.load(job["main"], job["files"][job["main"]])
            answer = {"value": getattr(check, job["body"])(student, me, job["inputs"])}
        except BaseException as error:
            answer = {"error": worker.report(error, job["files"])}
        given.send_bytes(fork_server.pack(answer))


class Ranks:
    """The processes of all runs with so many ranks."""

    def __init__(self, world_size, group):
        context = multiprocessing.get_context("forkserver")
        self.folder = tempfile.TemporaryDirectory(prefix="rungs-sweep-")
        meeting = f"{self.folder.name}/meeting" if group else ""
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=live, args=(theirs, rank, world_size, meeting), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, job, inputs):
        for pipe, mine in zip(self.pipes, inputs, strict=True):
            pipe.send_bytes(ranks.fork_server.pack(job | {"inputs": mine}))
        answers, end = {}, time.monotonic() + SECONDS
        while len(answers) < len(self.pipes):
            left = [pipe for pipe in self.pipes if pipe not in answers]
            ready = wait(left, max(0, end - time.monotonic()))
            if not ready:
                raise Verdict("timeout", f"{len(left)} ranks have not returned")
            for pipe in ready:
                answers[pipe] = ranks.fork_server.unpack(pipe.recv_bytes())
                if "error" in answers[pipe]:
                    raise Verdict("error", str(answers[pipe]["error"]))
        return [answers[pipe]["value"] for pipe in self.pipes]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


class Engine:
    """In place of ranks.run."""

    def __init__(self):
        self.kept = {}
        self.real = ranks.run
        self.source_of = functools.cache(ranks.source_of)  # reading it takes longer than a run
        self.was_real = False

    def run(self, attempt, body, inputs, **options):
        if options.get("disk") or options.get("dies") or not options.get("student", True):
            self.was_real = True
            return self.real(attempt, body, inputs, **options)
        files = options.get("files") or attempt.files
        attempt.runs += 1
        attempt.given = inputs
        job = {
            "source": self.source_of(body),
            "body": body.__name__,
            "files": files,
            "main": options.get("main") or next(iter(files)),
            "forbidden": attempt.forbidden,
        }
        key = len(inputs), options.get("group", True)
        if key not in self.kept:
            self.kept[key] = Ranks(*key)
        try:
            return self.kept[key].run(job, inputs)
        except (Verdict, EOFError, OSError):
            self.kept.pop(key).close()
            raise

    def close(self):
        for some in self.kept.values():
            some.close()
        self.kept = {}


# ---- one exercise -----------------------------------------------------------------------------


class Items:
    """The tests of an exercise, as pytest finds them."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        self.found = list(session.items)
        self.config = session.config


def collected(one):
    items = Items()
    words = [str(HERE / one["stem"]), "--collect-only", "-q", "-q", "--rootdir", str(HERE)]
    words += ["--confcutdir", str(HERE), "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:xdist"]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(words, plugins=[items])
    return items.found


def raised(item, arguments, attempt, seed):
    """What a test raises with this seed, in words; none if it passes."""
    token = ranks.CURRENT.set(attempt)
    plugin.seed_all(f"{seed}/{item.nodeid.rpartition('/')[2]}")
    try:
        item.obj(**arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        ranks.CURRENT.reset(token)
    return ""


class Nearest:
    """In place of comparing.close: it notes the largest error, as a part of the tolerance."""

    def __init__(self):
        self.close = comparing.close
        self.part, self.where, self.here = 0.0, "", ""

    def __call__(self, what, got, expected, relative=2e-5, scale=None, *more, **named):
        self.close(what, got, expected, relative, scale, *more, **named)
        got, expected = comparing.array(got), comparing.array(expected)
        allowed = comparing.tolerance(expected, relative, scale) if expected.size else 0
        if allowed > 0:
            part = float(numpy.abs(got - expected).max()) / allowed
            if part > self.part:
                self.part, self.where = part, f"{self.here}, {what}"


def refusals_of(items, folder, first, seeds, real):
    """What each test raises with each seed, where it raises something; how many tests have run; and how
    close to a refusal they came.
    """
    engine = Engine()
    ranks.run = engine.run
    comparing.close = nearest = Nearest()
    testing.needs_memory = lambda: pytest.skip("memory")
    found, runs = [], 0
    try:
        for item in items:
            module = item.obj.__globals__
            if "needs_memory" in module:
                module["needs_memory"] = testing.needs_memory
            arguments = item.callspec.params if hasattr(item, "callspec") else {}
            for seed in range(first, first + seeds):
                engine.was_real = False
                nearest.here = f"{item.nodeid.rpartition('/')[2]} --seed {seed}"
                attempt = plugin.prepared(item, folder)
                try:
                    error = raised(item, arguments, attempt, seed)
                    if error and not engine.was_real:
                        # Something of an earlier run may have stayed in the ranks: new ones decide.
                        engine.close()
                        error = raised(item, arguments, attempt, seed)
                except pytest.skip.Exception:
                    break
                runs += 1
                if error:
                    found.append([item.nodeid.rpartition("/")[2], seed, error])
                if engine.was_real:
                    ranks.wipe()
                    if seed + 1 - first >= real:
                        break
    finally:
        engine.close()
        ranks.SERVER.close()
    return found, runs, (nearest.part, nearest.where)


def sweep_one(identity, name, first, seeds, real):
    """One submission of one exercise, in a process of its own."""
    one = exercise(identity)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torch._dynamo"])
    files = {file: (SOLUTIONS / file).read_text() for file in one["files"]}
    if name != "solution":
        files |= dict(mutants.overlays(one))[name]
    with tempfile.TemporaryDirectory(prefix="rungs-sweep-") as folder:
        for file, text in files.items():
            Path(folder, file).parent.mkdir(exist_ok=True)
            Path(folder, file).write_text(text)
        print(json.dumps(refusals_of(collected(one), Path(folder), first, seeds, real)))


# ---- all --------------------------------------------------------------------------------------


def swept(identity, name, first, seeds, real):
    began = time.monotonic()
    words = [sys.executable, __file__, "--one", identity, name, "--first", str(first)]
    words += ["--seeds", str(seeds), "--real", str(real)]
    run = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        error = ["all", 0, f"the sweep has ended with status {run.returncode}"]
        return identity, name, [error], 0, (0, ""), 0
    found, runs, nearest = json.loads(run.stdout.splitlines()[-1])
    return identity, name, found, runs, nearest, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("exercises", nargs="*", metavar="03", help="exercises to sweep (default: all)")
    option("--seeds", type=int, default=20, help="seeds for each test (default: 20)")
    option("--first", type=int, default=0, help="the first seed, to go on with a sweep (default: 0)")
    option("--real", type=int, default=20, help="the most for tests with real runs (default: 20)")
    option("--jobs", type=int, default=2, help="exercises at the same time (default: 2)")
    option("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        sweep_one(*arguments.one, arguments.first, arguments.seeds, arguments.real)
        return
    todo = []
    for one in [exercise(name) for name in arguments.exercises] or manifest():
        names = ["solution", *(name for name, _ in mutants.overlays(one))]
        todo += [(one["id"], name, arguments.first, arguments.seeds, arguments.real) for name in names]
    refused = 0
    with multiprocessing.pool.ThreadPool(arguments.jobs) as pool:
        for identity, name, found, runs, nearest, seconds in pool.imap(lambda one: swept(*one), todo):
            refused += len(found)
            print(f"{identity:4}{name:24}{len(found):5} of {runs:7} refused {seconds:8.0f} s", flush=True)
            part, where = nearest
            print(f"      largest error: {part:.3f} of the tolerance {where}", flush=True)
            for test, seed, words in found[:SHOWN]:
                print(f"      {test} --seed {seed}: {words}", flush=True)
    if refused:
        raise SystemExit(
            f"error: {refused} right answers were refused: repeat one with pytest TEST --seed SEED"
        )


if __name__ == "__main__":
    main()
