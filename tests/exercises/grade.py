"""Grade the exercises of a class.

    python tests/exercises/grade.py SUBMISSIONS --out grades --jobs 2

SUBMISSIONS contains one folder, zip or tar file per student. Expect a progress bar. Afterwards, `grades` has
results.json (in Gradescope's format) and report.html for each student, and grades.csv, nbgrader.csv and
items.html for the class. After an interruption, run the same command again: finished grades are kept.

    python tests/exercises/grade.py --one FOLDER --out DIR    grade one submission, for an autograder
    python tests/exercises/grade.py --doctor                  show how well this machine contains submissions

Each submission is graded by pytest, in a process of its own: see grader/batch.py.
"""

import argparse
import contextlib
import difflib
import hashlib
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from concurrent.futures import BrokenExecutor, as_completed
from pathlib import Path

import corrections
import psutil
from grader import batch, handed, ranks, walls
from grader.exercises import exercise, manifest
from grader.results import Result, Verdict
from grader.settings import HERE, STARTERS
from grader.wording import report, so_many, visible

import pages

SHARED = ("learning.py", "optimizers.py")  # what tests of exercises import
SLOW_RUN = 2  # seconds
MOST_SEEDS = 5  # with so many the recorded solution has to fail a check until its exercise is not graded


def refuse(words):
    raise SystemExit(f"error: {words}")


# ---- one submission ---------------------------------------------------------------------------


def grade_files(files, exercises, seed):
    """The results of each exercise, as dicts. Raises Broken if this machine gave none."""
    if not exercises:
        return {}
    with tempfile.TemporaryDirectory(prefix="rungs-submission-") as folder:
        for name, data in files.items():
            copy_to(Path(folder) / name, data)
        names = [one["id"] for one in exercises]
        graded, said = batch.grade(folder, ",".join(names), seed)
    for one in exercises:
        if len(graded.get(one["id"], [])) != len(one["check"]):
            last = (said.strip().splitlines() or ["it printed nothing"])[-1]
            raise ranks.Broken(f"pytest gave no results for exercise {one['id']}: {last}")
    return graded


def seed_in(out, given):
    """The seed of all grades in this folder: as given, or as before, or one that no student can know."""
    file = out / "seed.txt"
    before = file.read_text() if file.exists() else ""
    if before and given and given != before:
        refuse(f"{out} has grades with the seed {before}: choose another --out")
    file.write_text(given or before or secrets.token_hex(8))
    return file.read_text()


def fingerprint(one, files, seed, level):
    """What the grade of an exercise depends on: its files, the grader, the seed. If all that is as it was,
    the grade is kept."""
    digest = hashlib.sha256(json.dumps([seed, level, one]).encode())
    for name in one["files"]:
        digest.update(files.get(name, b"none"))
    ours = [HERE / name for name in SHARED]
    for pattern in ("grader/*.py", "sandbox/*.py", f"{one['stem']}/test_*.py"):
        ours += sorted(HERE.glob(pattern))
    for file in ours:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def untouched_of(one, files):
    """The checks of an exercise whose files are missing, or the starters as students got them."""

    def lines(data):
        # Line ends and what an editor strips are no answer. How far a line is indented can be one.
        return [line.rstrip() for line in data.rstrip().splitlines()]

    own = set()
    for name, data in files.items():
        if lines(data) != lines((STARTERS / name).read_bytes()):
            own.add(name)
    untouched = []
    for entry in one["check"]:
        if own.isdisjoint(entry.get("files", one["files"])):
            untouched.append(entry["id"])
    return untouched


def not_handed_in(record, found, exercises):
    """The exercises that are absent, with what may be meant for them, and the checks that are untouched. For
    exercises that are not graded now, the record says it."""
    now = {one["id"] for one in exercises}
    absent = {}
    for name, guess in record["absent"].items():
        if name not in now:
            absent[name] = guess
    untouched = set()
    for name in record["untouched"]:
        if name.partition(".")[0] not in now:
            untouched.add(name)
    for one in exercises:
        if found.files.keys().isdisjoint(one["files"]):
            absent[one["id"]] = found.guesses.get(one["id"], "")
        untouched.update(untouched_of(one, found.files))
    return absent, untouched


def broken_by(results):
    """Why this machine has not graded an exercise: a check, and its words. No words if it has."""
    for result in results:
        if result["status"] == "infrastructure":
            return f"{result['id']}: {result['came']}"
    return ""


def grade_into(student, submission, out, exercises, seed):
    """Grade one student into a folder of its own. Returns what the class's tables need."""
    folder = out / student
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    found = handed.read(submission, exercises)
    level = ranks.SERVER.level
    record = {"marks": {}, "exercises": {}, "absent": {}, "untouched": [], "redrawn": {}, "seconds": 0}
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / "grade.json").read_text())
    redrawn = record["redrawn"]

    def seed_of(name):
        words = f"{seed}/{student}"
        if name in redrawn:
            words += f"/{redrawn[name]}"
        return hashlib.sha256(words.encode()).hexdigest()[:12]

    marks = {}
    results = record["exercises"]
    todo = []
    for one in exercises:
        marks[one["id"]] = fingerprint(one, found.files, seed_of(one["id"]), level)
        if record["marks"].get(one["id"]) != marks[one["id"]]:
            todo.append(one)
    usual = [one for one in todo if one["id"] not in redrawn]
    results |= grade_files(found.files, usual, seed_of(""))
    for one in todo:
        name = one["id"]
        if name in redrawn:
            results |= grade_files(found.files, [one], seed_of(name))
        # A check that the recorded solution does not pass with these inputs says nothing: others are drawn.
        while "the recorded solution does not pass" in broken_by(results[name]):
            if redrawn.get(name, 0) == MOST_SEEDS:
                break
            redrawn[name] = redrawn.get(name, 0) + 1
            results |= grade_files(found.files, [one], seed_of(name))
            marks[name] = fingerprint(one, found.files, seed_of(name), level)

    broken = [name for name, some in results.items() if broken_by(some)]
    absent, untouched = not_handed_in(record, found, exercises)
    # An exercise that this machine has not graded is graded again the next time.
    marks = record["marks"] | marks
    for name in broken:
        marks.pop(name, None)
    record = {
        "student": student,
        "seed": seed_of(""),
        "seeds": {name: seed_of(name) for name in redrawn},
        "redrawn": redrawn,
        "containment": walls.containment(level),
        "infrastructure": bool(broken),
        "trouble": found.trouble or (broken_by(results[broken[0]]) if broken else ""),
        "absent": dict(sorted(absent.items())),
        "untouched": sorted(untouched),
        "kept": not todo,
        "seconds": time.monotonic() - began if todo else record["seconds"],
        "marks": marks,
        "exercises": dict(sorted(results.items())),
    }
    pages.write_student(record, folder, broken)
    (folder / "grade.json").write_text(json.dumps(record))
    return record


# ---- the class --------------------------------------------------------------------------------


def failed_record(student, trouble):
    trouble = visible(trouble)
    return {"student": student, "infrastructure": True, "exercises": {}, "trouble": trouble}


def grade_safely(student, submission, out, exercises, seed):
    """In a process of the pool: one bad submission never stops the rest."""
    try:
        return grade_into(student, submission, out, exercises, seed)
    except Exception as error:
        ranks.SERVER.close()  # the next submission gets a new sandbox
        return failed_record(student, f"{type(error).__name__}: {error}")


def grade_in_pool(found, records, level, arguments, exercises, jobs, progress):
    """Put the record of each of these students into `records`; of none whose process was ended."""
    more = (arguments.out, exercises, arguments.seed)
    given = {}
    with (
        tempfile.TemporaryDirectory(prefix="rungs-grading-") as scratch,
        batch.pool(jobs, level, scratch) as pool,
    ):
        try:
            with batch.without_interrupts():  # the processes begin here, and keep that
                for student, submission in found.items():
                    given[pool.submit(grade_safely, student, submission, *more)] = student
            for done in as_completed(given):
                with contextlib.suppress(BrokenExecutor):
                    records[given[done]] = done.result()
                    progress(records[given[done]])
        except KeyboardInterrupt:
            batch.end(pool)
            new = 0
            for record in records.values():
                if not record["infrastructure"] and not record["kept"]:
                    new += 1
            refuse(f"interrupted: all grades are kept, {new} of them new; run the same command to continue")


def in_words(record):
    """A line about one student, for a log."""
    if record["infrastructure"]:
        return f"{record['student']}: not graded yet: {record['trouble']}"
    if record["kept"]:
        return f"{record['student']}: {pages.earned(pages.every(record))}, kept"
    return f"{record['student']}: {pages.earned(pages.every(record))}, {record['seconds']:.0f} s"


def kept_records(out, found):
    """The records of an earlier run of students who are not graded now."""
    records = {}
    for student in found:
        with contextlib.suppress(OSError, ValueError):
            records[student] = json.loads((out / student / "grade.json").read_text()) | {"kept": True}
    return records


def grade_class(arguments, exercises):
    from tqdm import tqdm

    folder, out = arguments.submissions, arguments.out
    if not folder.is_dir():
        refuse(f"there is no folder {folder}")
    found, ignored = handed.students(folder)
    if not found:
        refuse(f"there are no submissions in {folder}: it needs a folder, zip or tar file per student")
    todo = found
    if arguments.student:
        if arguments.student not in found:
            words = f"there is no submission of {arguments.student}"
            near = difflib.get_close_matches(arguments.student, found)
            if near:
                words += f": did you mean {near[0]}?"
            refuse(words)
        todo = {arguments.student: found[arguments.student]}
    level = arguments.level or walls.machine()["level"]
    if level < 3 and not arguments.force:
        why = walls.machine()["why"].get(3, "level 3 is available here")
        refuse(f"level {level} is not enough for a class ({why}). --force overrides this")
    beside = folder.resolve().parent / "corrections.csv"
    by_hand = arguments.corrections or (beside if beside.exists() else None)
    rows = corrections.read(by_hand, found)
    out.mkdir(parents=True, exist_ok=True)
    arguments.seed = seed_in(out, arguments.seed)
    if by_hand:
        print(f"corrections by hand: {by_hand}")
    count = so_many(len(todo), "submission")
    print(f"{count}, {walls.containment(level)}, seed {arguments.seed}", flush=True)

    began = time.monotonic()
    records = kept_records(out, found.keys() - todo.keys())
    with tqdm(total=len(todo), unit="submission", disable=not sys.stderr.isatty()) as bar:

        def progress(record):
            bar.update()
            if bar.disable:
                print(in_words(record), flush=True)

        jobs = min(arguments.jobs, len(todo))
        grade_in_pool(todo, records, level, arguments, exercises, jobs, progress)
        # Alone, what a busy machine could not grade has all of it; and where a process of the pool is ended,
        # which ends the pool, it costs nobody else.
        for student, submission in todo.items():
            if student not in records or records[student]["infrastructure"]:
                records.setdefault(student, failed_record(student, "the grader's process was killed twice"))
                print(f"{student}: graded again, alone: {records[student]['trouble']}", flush=True)
                one = {student: submission}
                grade_in_pool(one, records, level, arguments, exercises, 1, progress)
    records = [records[student] for student in found if student in records]
    pages.write_class(records, out, arguments.seed, rows)
    sum_up(records, ignored, out, time.monotonic() - began)


def sum_up(records, ignored, out, seconds):
    failed = [record for record in records if record["infrastructure"]]
    kept = 0
    for record in records:
        if record.get("kept"):
            kept += 1
    print(f"{len(records) - len(failed) - kept} graded, {kept} kept from an earlier run, {seconds:.0f} s")
    print(f"see {out / 'grades.csv'} and {out / 'items.html'}")
    for record in records:
        if record["infrastructure"]:
            continue
        if record["trouble"]:
            print(f"unreadable, so no points: {record['trouble']}")
        for name, guess in record["absent"].items():
            if guess:
                print(f"not handed in by {record['student']}: {name} ({guess})")
        for name, seed in record["seeds"].items():
            print(
                f"{record['student']}: exercise {name} with other inputs, of the seed {seed}: the recorded "
                "solution did not pass it with the first ones"
            )
    if ignored:
        print(f"ignored, because it is not a folder, zip or tar file: {', '.join(ignored)}")
    for record in failed:
        print(f"not graded, because this machine failed: {record['student']}: {record['trouble']}")
    if failed:
        refuse(f"{len(failed)} not graded: run the same command again")


def copy_to(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def grade_one(arguments, exercises):
    if not arguments.one.exists():
        refuse(f"there is no submission {arguments.one}")
    level = arguments.level or walls.machine()["level"]
    if level < 2 and walls.machine()["root"] and not arguments.force:
        why = walls.machine()["why"].get(2, "level 2 is available here")
        refuse(f"level 1 is not enough for root, who can do everything ({why}). --force overrides this")
    arguments.out.mkdir(parents=True, exist_ok=True)
    seed = arguments.seed or secrets.token_hex(8)
    try:
        found = handed.read(handed.Submission({"": arguments.one}), exercises)
        batch.begin(level)
        graded = grade_files(found.files, exercises, seed)
    except ranks.Broken as error:
        refuse(f"this machine failed, so there is no grade ({visible(str(error))})")
    finally:
        ranks.SERVER.close()
    for one in exercises:
        results = [Result(**result) for result in graded[one["id"]]]
        print(report(one, results), end="\n\n")
    record = {
        "student": handed.shown(arguments.one.name),
        "seed": seed,
        "seeds": {},
        "containment": walls.containment(level),
        "trouble": found.trouble,
        "absent": found.guesses,
        "exercises": graded,
    }
    for name, guess in found.guesses.items():
        print(f"not handed in: {name} ({guess})")
    print(record["containment"])
    statuses = {result["status"] for result in pages.every(record)}
    pages.write_student(record, arguments.out, "infrastructure" in statuses)
    if "infrastructure" in statuses:
        refuse("this machine failed, so there is no grade (see report.html)")
    # Gradescope takes any other status for a failure of the autograder itself.
    if arguments.strict and statuses - {"skipped"} != {"passed"}:
        sys.exit(1)


def sum_of_ranks(student, me, number):
    """What --doctor runs in the sandbox."""
    import torch

    tensor = torch.tensor(number)
    torch.distributed.all_reduce(tensor)
    return tensor.item()


def doctor():
    found = walls.machine()
    print(f"submissions are contained at {walls.containment(found['level'])}")
    for level in (3, 2, 1):
        why = found["why"].get(level)
        is_here = f"no: {why}" if why else "yes"
        print(f"  level {level}: {is_here} ({walls.MEANING[level]})")
    landlock = f"version {found['landlock']}" if found["landlock"] else "no"
    print(f"  Landlock: {landlock}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 1e9
    print(f"  {so_many(cores, 'core')}, {memory:.1f} GB of memory")
    began = time.monotonic()
    try:
        ranks.wipe()  # the sandbox answers when it has started
        started = time.monotonic()
        attempt = ranks.Attempt({"work.py": ""})
        ranks.run(attempt, sum_of_ranks, [1, 2])
        ended = time.monotonic()
    except (ranks.Broken, Verdict) as error:
        refuse(f"the sandbox does not work: {visible(str(error))}")
    finally:
        ranks.SERVER.close()
    print(f"  the sandbox starts in {started - began:.1f} s")
    print(f"  a run with 2 processes takes {ended - started:.2f} s")
    if ended - started > SLOW_RUN:
        print("  that is slow: with nothing else to do, it is a tenth of a second")
    if found["level"] == 2:
        print("  level 2 is enough for one submission in its own container; a class needs level 3")
    if found["level"] == 1:
        refuse("level 1 is only for your own code: install bubblewrap, or run this as root in a container")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("submissions", type=Path, nargs="?", help="folder with one folder, zip or tar file per student")
    option("--out", type=Path, default=Path("out/grades"), help="folder for all output (default: out/grades)")
    option("--jobs", type=int, default=2, help="number of submissions to grade at the same time (default: 2)")
    option("--seed", default="", help="seed for the inputs of all students; it is recorded (default: random)")
    option("--only", default="", help="exercises to grade, such as 03,03a (default: all)")
    option("--student", metavar="NAME", help="grade one student of the class, and keep the other grades")
    option("--force", action="store_true", help="grade even if submissions are not contained well enough")
    option("--level", type=int, choices=(1, 2, 3), help="containment level (default: the best one)")
    beside = "SUBMISSIONS/../corrections.csv"
    option("--corrections", type=Path, help=f"points and comments by hand (default: {beside})")
    option("--one", type=Path, help="grade one submission into --out")
    option("--strict", action="store_true", help="with --one: end with status 1 unless all checks pass")
    option("--doctor", action="store_true", help="show how well this machine can contain submissions")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        refuse("--jobs must be at least 1")
    if arguments.level and arguments.level > 1 and arguments.level in walls.machine()["why"]:
        refuse(f"level {arguments.level} does not work here: {walls.machine()['why'][arguments.level]}")
    if walls.within_reach() and not arguments.force:
        refuse(walls.within_reach())
    only = filter(None, arguments.only.split(","))
    exercises = [exercise(one) for one in only] or manifest()
    if arguments.doctor:
        doctor()
    elif arguments.one:
        grade_one(arguments, exercises)
    elif arguments.submissions:
        grade_class(arguments, exercises)
    else:
        parser.error("give a folder of submissions, --one or --doctor")


def interrupt(number, frame):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        main()
    except KeyboardInterrupt:
        refuse("interrupted")
