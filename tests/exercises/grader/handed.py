"""What students hand in: folders, archives, and the files of a learning platform's bulk download. The
declared files are read as bytes, and nothing else of it."""

import contextlib
import difflib
import hashlib
import json
import os
import re
import signal
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import limits

from grader.exercises import Exercise
from grader.server import Broken
from grader.settings import LARGEST_FILE
from grader.wording import visible

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
NOT_READ = (".rar", ".7z")  # archives that Python cannot open
CODE = (".py", ".py.txt", ".ipynb")  # what may be meant for an exercise
WITHOUT_FOLDER = 1_000  # deeper than any folder
OF_A_MAC = "__MACOSX"  # what macOS puts into an archive: copies of each file's attributes, named as the file
LARGEST_ARCHIVE = 50 << 20
# What may be used to read an archive: some are made to be unpacked for hours, or to fill the memory.
ARCHIVE_SECONDS, ARCHIVE_MEMORY = 10, 512 << 20
# Files as bulk downloads name them. Canvas: lovelaceada_LATE_17_4242_03_average_gradients-1.py, where the
# last number counts what was handed in again. Moodle: Ada
# Lovelace_17_assignsubmission_file_03_average_gradients.py, or a folder Ada
# Lovelace_17_assignsubmission_file.
CANVAS = re.compile(r"(?P<student>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<file>.+\.\w+)")
MOODLE = re.compile(r"(?P<student>.+)_(?P<number>\d+)_assignsubmission_(file|onlinetext)_?(?P<file>.*)")
AGAIN = re.compile(r"-(\d+)(?=\.[a-z.]+$)")
OURS = ("grades.csv", "nbgrader.csv", "items.html", "seed.txt")


@dataclass
class Submission:
    """Where the files of a student lie: a folder or an archive, or several files of a bulk download with the
    names that they had."""

    places: dict[str, Path] = field(default_factory=dict)


@dataclass
class Found:
    """The files of a submission, why it cannot be opened, if so, and for exercises that are not there what
    may be meant for one."""

    files: dict[str, bytes]
    trouble: str = ""
    guesses: dict[str, str] = field(default_factory=dict)


def shown(name: str) -> str:
    """A name that may stand on a terminal, in a table and in a path beside ours. No two names become one."""
    name = "".join(map(shown_letter, name))
    if name.casefold() in OURS:
        name = f"%{ord(name[0]):02x}{name[1:]}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name if len(name.encode()) < 200 else f"{name[:40]}%{digest}"


def shown_letter(letter: str) -> str:
    is_plain = letter.isprintable() and letter not in "%;"
    return letter if is_plain else f"%{ord(letter):02x}"


def students(folder: Path) -> tuple[dict[str, Submission], list[str]]:
    """Each submission by the name of its student, and what lies there and is none."""
    found, ignored = {}, []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == OF_A_MAC:
            continue
        whose = MOODLE.fullmatch(path.name)
        if whose is None and not path.is_dir():
            whose = CANVAS.fullmatch(path.name)
        if whose is not None:
            student = shown(f"{whose['student']}_{whose['number']}")
            places = found.setdefault(student, Submission()).places
            file = AGAIN.sub("", whose["file"])
            if "_assignsubmission_onlinetext" in path.name:
                file = path.name  # what was typed into a form is none of the files
            # Of a file that was handed in several times, the last one counts.
            if file not in places or again(path.name) > again(places[file].name):
                places[file] = path
            continue
        name = path.name
        for ending in (*ARCHIVES, *NOT_READ):
            if name.lower().endswith(ending):
                name = name[: -len(ending)]
        if not path.is_dir() and name == path.name:
            ignored.append(shown(path.name))
        elif shown(name) in found:
            first = shown(next(iter(found[shown(name)].places.values())).name)
            both = f"{shown(path.name)} and {first} in {folder} both belong to {shown(name)}"
            raise SystemExit(f"error: {both}: remove one")
        else:
            found[shown(name)] = Submission({"": path})
    return found, ignored


def again(name: str) -> int:
    number = AGAIN.search(name)
    return int(number[1]) if number else 0


def entries(file: str, path: Path) -> Iterator[tuple]:
    """The files in a folder or an archive, or a single one: their names, and what opens each; None for a link
    or a device."""
    if path.is_symlink():
        raise ValueError("it is a link, and links are not followed")
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if not inner.name.lower().endswith(CODE):
                continue
            is_plain = inner.is_file() and not inner.is_symlink()
            # A folder on the way may be a link, too.
            is_plain = is_plain and inner.resolve().is_relative_to(path.resolve())
            yield inner.relative_to(path).as_posix(), partial(inner.open, "rb") if is_plain else None
    elif not path.is_file():
        raise ValueError("it is not a regular file")
    elif path.name.lower().endswith(NOT_READ):
        raise ValueError("ask for a zip or a tar")
    elif not path.name.lower().endswith(ARCHIVES):
        yield file or path.name, partial(path.open, "rb")
    elif path.stat().st_size > LARGEST_ARCHIVE:
        raise ValueError(f"the archive is larger than {LARGEST_ARCHIVE >> 20} MB")
    elif path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                is_link = stat.S_ISLNK(entry.external_attr >> 16)
                yield entry.filename, None if is_link else partial(archive.open, entry)
    else:
        with tarfile.open(path) as archive:
            for entry in archive:
                yield entry.name, partial(archive.extractfile, entry) if entry.isfile() else None


def parts_of_files(exercises: list[Exercise]) -> dict[str, tuple[str, ...]]:
    """Each declared file, with the folders and the name that make its path."""
    found = {}
    for one in exercises:
        for name in one["files"]:
            found[name] = PurePosixPath(name).parts
    return found


def collect(submission: Submission, exercises: list[Exercise]) -> Found:
    """The declared files of a submission, and nothing else of it. What lies deeper in a folder or an archive
    is found too, and the copy nearer the top counts; links are not followed."""
    found, depths = {}, {}  # of each file
    links = set()
    others = []
    wanted = parts_of_files(exercises)
    for file, path in submission.places.items():
        with contextlib.closing(entries(file, path)) as every:
            for name, start in every:
                parts = PurePosixPath(name.replace("\\", "/")).parts
                if OF_A_MAC in parts:
                    continue
                depth = len(parts)
                meant = [want for want, own in wanted.items() if parts[-len(own) :] == own]
                # Without the folder of its exercise, a file counts less than any copy in such a folder.
                if not meant:
                    meant = [want for want, own in wanted.items() if parts[-1:] == own[-1:]]
                    depth += WITHOUT_FOLDER
                if not meant and name.lower().endswith(CODE):
                    others.append(name)
                for want in meant:
                    if start is None:
                        links.add(want)
                    elif depth < depths.get(want, depth + 1):
                        with start() as opened:  # an archive may claim to be small
                            found[want] = opened.read(LARGEST_FILE + 1)
                        depths[want] = depth
    guesses = {}
    for one in exercises:
        if not found.keys().isdisjoint(one["files"]):
            continue
        of_links = sorted(links.intersection(one["files"]))
        guess = meant_for(one, others)
        if of_links:
            guesses[one["id"]] = f"{of_links[0]} is a link or a device"
        elif guess:
            guesses[one["id"]] = f"is it {visible(guess)[:100]}?"
    return Found(found, "", guesses)


def meant_for(one: Exercise, names: list[str]) -> str:
    """Which of these names may be meant for an exercise: `ex01.py`, `03b_ddp (1).py`,
    `average_gradient.py`."""
    words = one["stem"].partition("_")[2]
    for name in names:
        stem = PurePosixPath(name.replace("\\", "/")).stem.lower().removesuffix(".py")
        number = re.search(r"(\d+)([a-z]?)(?![a-z0-9])", stem.replace("_", " "))
        if number and f"{int(number[1]):02}{number[2]}" == one["id"]:
            return name
        if difflib.get_close_matches(words, [stem], cutoff=0.8):
            return name
    return ""


def read(submission: Submission, exercises: list[Exercise]) -> Found:
    """What `collect` finds, in a process with limits: an archive may be made to be read for ever, or to fill
    the memory. Raises Broken if this machine fails."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if sys.platform == "linux":
                limits.limit("RLIMIT_AS", limits.linux_proc.address_space() + ARCHIVE_MEMORY)
            limits.limit("RLIMIT_CPU", ARCHIVE_SECONDS + 2)
            found = collected(submission, exercises)
            texts = {name: data.decode("latin-1") for name, data in found.files.items()}
            with open(writes, "w") as pipe:
                json.dump([texts, found.trouble, found.guesses], pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with open(reads) as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 0 or status == -signal.SIGKILL:  # no limit and no archive ends it in this way
        raise Broken(f"the process that read the submission ended with the status {status}")
    texts, trouble, guesses = {}, f"reading it takes more than {ARCHIVE_SECONDS} s", {}
    if status == 0:
        texts, trouble, guesses = json.loads(said)
    if trouble:
        first = next(iter(submission.places.values()))
        trouble = f"{shown(first.name)} cannot be opened: {visible(trouble)}"
    return Found({name: text.encode("latin-1") for name, text in texts.items()}, trouble, guesses)


def collected(submission: Submission, exercises: list[Exercise]) -> Found:
    """What `collect` finds, and what it raises instead, in words."""
    try:
        return collect(submission, exercises)
    except MemoryError:
        return Found({}, f"reading it takes more than {ARCHIVE_MEMORY >> 20} MB of memory")
    except Exception as error:  # zlib, lzma, zipfile and tarfile have many kinds, and none is the machine's
        return Found({}, str(error) or type(error).__name__)
