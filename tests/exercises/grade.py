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
import hashlib
import json
import os
import secrets
import signal
import stat
import sys
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import BrokenExecutor, as_completed
from functools import partial
from pathlib import Path, PurePosixPath

import corrections
from grader import batch, ranks, walls
from grader.exercises import exercise, manifest
from grader.results import Result
from grader.settings import HERE, LARGEST_FILE, STARTERS
from grader.walls import limits
from grader.wording import report, so_many, visible

import pages

LARGEST_ARCHIVE = 50 << 20
# What may be used to read an archive: some are made to be unpacked for hours, or to fill the memory.
ARCHIVE_SECONDS, ARCHIVE_MEMORY = 10, 512 << 20
SHARED = ("learning.py", "optimizers.py")  # what tests of exercises import
OURS = ("grades.csv", "nbgrader.csv", "items.html", "seed.txt")


def refuse(words):
    raise SystemExit(f"error: {words}")


# ---- submissions ------------------------------------------------------------------------------


def shown(name):
    """A name that may stand on a terminal, in a table and in a path beside ours. No two names become one."""
    name = "".join(c if c.isprintable() and c not in "%;" else f"%{ord(c):02x}" for c in name)
    if name.casefold() in OURS:
        name = f"%{ord(name[0]):02x}{name[1:]}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name if len(name.encode()) < 200 else f"{name[:40]}%{digest}"


def students(folder):
    """Each submission by the name of its student, and what lies there and is none."""
    found, ignored = {}, []
    for path in sorted(folder.iterdir()):
        name = path.name
        for ending in (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz"):
            name = name.removesuffix(ending)
        if path.name.startswith("."):
            continue
        if not path.is_dir() and name == path.name:
            ignored.append(shown(path.name))
        elif shown(name) in found:
            first = shown(found[shown(name)].name)
            refuse(f"{shown(path.name)} and {first} in {folder} both belong to {shown(name)}: remove one")
        else:
            found[shown(name)] = path
    return found, ignored


def collect(path, exercises):
    """The declared files of a submission as bytes by name, and nothing else of it. What lies deeper in a
    folder or an archive is found too; links are not followed."""
    wanted = [PurePosixPath(name) for one in exercises for name in one["files"]]
    found, depths, strange = {}, {}, {}
    with contextlib.closing(entries(path)) as every:
        for name, start in every:
            parts = PurePosixPath(name.replace("\\", "/")).parts
            for want in wanted:
                if parts[-len(want.parts) :] != want.parts:
                    continue
                if start is None:
                    strange[str(want)] = f"{want} inside is a link or a device, not a regular file"
                elif len(parts) < depths.get(str(want), len(parts) + 1):
                    with start() as file:  # an archive may claim to be small
                        found[str(want)], depths[str(want)] = file.read(LARGEST_FILE + 1), len(parts)
    for want in strange.keys() - found.keys():
        raise ValueError(strange[want])
    return found


def entries(path):
    """The files in a folder or an archive: their names, and what opens each; None for a link or a device."""
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            if file.is_file() and not file.is_symlink() and file.resolve().is_relative_to(path.resolve()):
                yield file.relative_to(path).as_posix(), partial(file.open, "rb")
    elif not path.is_file():
        raise ValueError("it is not a regular file")
    elif path.stat().st_size > LARGEST_ARCHIVE:
        raise ValueError(f"the archive is larger than {LARGEST_ARCHIVE >> 20} MB")
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                is_link = stat.S_ISLNK(entry.external_attr >> 16)
                yield entry.filename, None if is_link else partial(archive.open, entry)
    else:
        with tarfile.open(path) as archive:
            for entry in archive:
                yield entry.name, partial(archive.extractfile, entry) if entry.isfile() else None


# ---- one submission ---------------------------------------------------------------------------


def opened(path, exercises):
    """The files of a submission, and why it cannot be opened, if so. In a process with limits: it may be made
    to be read for ever, or to fill the memory."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if sys.platform == "linux":
                limits.limit("RLIMIT_AS", limits.linux.address_space() + ARCHIVE_MEMORY)
            limits.limit("RLIMIT_CPU", ARCHIVE_SECONDS + 2)
            files, trouble = collected(path, exercises)
            with open(writes, "w") as pipe:
                json.dump([{name: data.decode("latin-1") for name, data in files.items()}, trouble], pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with open(reads) as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 0 or status == -signal.SIGKILL:  # no limit and no archive ends it in this way
        raise ranks.Broken(f"the process that read the submission ended with the status {status}")
    files, trouble = {}, f"reading it takes more than {ARCHIVE_SECONDS} s"
    if status == 0:
        files, trouble = json.loads(said)
    why = f"{shown(path.name)} cannot be opened: {visible(trouble)}" if trouble else ""
    return {name: text.encode("latin-1") for name, text in files.items()}, why


def collected(path, exercises):
    """What `collect` finds, and what it raises instead, in words."""
    try:
        return collect(path, exercises), ""
    except MemoryError:
        return {}, f"reading it takes more than {ARCHIVE_MEMORY >> 20} MB of memory"
    except Exception as error:  # zlib, lzma, zipfile and tarfile have many kinds, and none is the machine's
        return {}, str(error) or type(error).__name__


def grade_files(files, exercises, seed):
    """The results of each exercise, as dicts. Raises Broken if this machine gave none."""
    if not exercises:
        return {}
    with tempfile.TemporaryDirectory(prefix="rungs-submission-") as folder:
        for name, data in files.items():
            copy_to(Path(folder) / name, data)
        graded, said = batch.grade(folder, ",".join(one["id"] for one in exercises), seed)
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

    own = {name for name in files if lines(files[name]) != lines((STARTERS / name).read_bytes())}
    return [entry["id"] for entry in one["check"] if own.isdisjoint(entry.get("files", one["files"]))]


def why_broken(results, broken):
    """Which check this machine could not run, and why: for the first exercise that is not graded."""
    for name in broken:
        for result in results[name]:
            if result["status"] == "infrastructure":
                return f"{result['id']}: {result['came']}"
    return ""


def grade_into(student, path, out, exercises, seed):
    """Grade one student into a folder of its own. Returns what the class's tables need."""
    folder, own_seed = out / student, hashlib.sha256(f"{seed}/{student}".encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    files, trouble = opened(path, exercises)
    level = ranks.SERVER.level
    marks = {one["id"]: fingerprint(one, files, own_seed, level) for one in exercises}
    record = {"marks": {}, "exercises": {}, "absent": [], "untouched": []}
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / "grade.json").read_text())
    todo = [one for one in exercises if record["marks"].get(one["id"]) != marks[one["id"]]]
    results = record["exercises"] | grade_files(files, todo, own_seed)
    broken = [name for name, some in results.items() if any(r["status"] == "infrastructure" for r in some)]
    absent = set(record["absent"]) - set(marks)
    absent |= {one["id"] for one in exercises if not any(name in files for name in one["files"])}
    untouched = {name for name in record["untouched"] if name.partition(".")[0] not in marks}
    untouched |= {check for one in exercises for check in untouched_of(one, files)}
    record = {
        "student": student,
        "seed": own_seed,
        "containment": walls.containment(level),
        "infrastructure": bool(broken),
        "trouble": trouble or why_broken(results, broken),
        "absent": sorted(absent),
        "untouched": sorted(untouched),
        "kept": not todo,
        "marks": {name: mark for name, mark in (record["marks"] | marks).items() if name not in broken},
        "exercises": dict(sorted(results.items())),
    }
    pages.write_student(record, folder, broken)
    (folder / "grade.json").write_text(json.dumps(record))
    return record


# ---- the class --------------------------------------------------------------------------------


def failed_record(student, trouble):
    trouble = visible(trouble)
    return {"student": student, "infrastructure": True, "exercises": {}, "trouble": trouble}


def grade_safely(student, path, out, exercises, seed):
    """In a process of the pool: one bad submission never stops the rest."""
    try:
        return grade_into(student, path, out, exercises, seed)
    except Exception as error:
        ranks.SERVER.close()  # the next submission gets a new sandbox
        return failed_record(student, f"{type(error).__name__}: {error}")


def grade_in_pool(found, records, level, arguments, exercises, bar):
    """Put the record of each of these students into `records`; of none whose process was ended."""
    with batch.pool(arguments.jobs, level) as pool:
        more = (arguments.out, exercises, arguments.seed)
        given = {pool.submit(grade_safely, *one, *more): one[0] for one in found.items()}
        try:
            for done in as_completed(given):
                with contextlib.suppress(BrokenExecutor):
                    records[given[done]] = done.result()
                    bar.update()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            refuse("interrupted: run the same command again to continue")


def grade_class(arguments, exercises):
    from tqdm import tqdm

    folder, out = arguments.submissions, arguments.out
    if not folder.is_dir():
        refuse(f"there is no folder {folder}")
    found, ignored = students(folder)
    if not found:
        refuse(f"there are no submissions in {folder}: it needs a folder, zip or tar file per student")
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
    count = so_many(len(found), "submission")
    print(f"{count}, {walls.containment(level)}, seed {arguments.seed}")
    records, began = {}, time.monotonic()
    with tqdm(total=len(found), unit="submission", disable=None) as bar:
        grade_in_pool(found, records, level, arguments, exercises, bar)
        # When one of its processes is ended, a pool fails for all that wait. Alone, each costs only itself.
        for student in found.keys() - records.keys():
            grade_in_pool({student: found[student]}, records, level, arguments, exercises, bar)
    failures = {student: failed_record(student, "the grader's process was killed twice") for student in found}
    records = [(failures | records)[student] for student in found]
    pages.write_class(records, out, arguments.seed, rows)
    failed = [record for record in records if record["infrastructure"]]
    seconds = time.monotonic() - began
    kept = sum(bool(record.get("kept")) for record in records)
    print(f"{len(records) - len(failed) - kept} graded, {kept} kept from an earlier run, {seconds:.0f} s")
    print(f"see {out / 'grades.csv'} and {out / 'items.html'}")
    for record in records:
        if record["trouble"] and not record["infrastructure"]:
            print(f"unreadable, so no points: {record['trouble']}")
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
        files, trouble = opened(arguments.one, exercises)
        batch.begin(level)
        graded = grade_files(files, exercises, seed)
    except ranks.Broken as error:
        refuse(f"this machine failed, so there is no grade ({visible(str(error))})")
    finally:
        ranks.SERVER.close()
    for one in exercises:
        print(report(one, [Result(**result) for result in graded[one["id"]]]), end="\n\n")
    record = {
        "student": shown(arguments.one.name),
        "seed": seed,
        "containment": walls.containment(level),
        "trouble": trouble,
        "exercises": graded,
    }
    print(record["containment"])
    statuses = {result["status"] for result in pages.every(record)}
    pages.write_student(record, arguments.out, "infrastructure" in statuses)
    if "infrastructure" in statuses:
        refuse("this machine failed, so there is no grade (see report.html)")
    # Gradescope takes any other status for a failure of the autograder itself.
    if arguments.strict and statuses != {"passed"}:
        sys.exit(1)


def doctor():
    found = walls.machine()
    print(f"submissions are contained at {walls.containment(found['level'])}")
    for level in (3, 2, 1):
        why = found["why"].get(level)
        print(f"  level {level}: {'no: ' + why if why else 'yes'} ({walls.MEANING[level]})")
    print(f"  Landlock: {'version ' + str(found['landlock']) if found['landlock'] else 'no'}")
    began = time.monotonic()
    try:
        ranks.wipe()  # the sandbox answers when it has started
    except ranks.Broken as error:
        refuse(f"the sandbox does not start: {visible(str(error))}")
    finally:
        ranks.SERVER.close()
    print(f"  the sandbox starts in {time.monotonic() - began:.1f} s")
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


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        refuse("interrupted")
