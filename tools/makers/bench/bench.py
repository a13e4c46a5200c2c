"""Measure this machine: `make bench`. Ends with a comparison with the machine of the page, and a dated file.

    python -m tools.makers.bench.bench                      the usual sections, in about 10 minutes
    python -m tools.makers.bench.bench --only all-reduce    some sections: --only "two processes" overlap
    python -m tools.makers.bench.bench --all                every section, in about 25 minutes
    python -m tools.makers.bench.bench --readme tools/makers/results/FILE.jsonl    write README.md from a file

All measurements take turns, so a noisy moment affects all of them alike. Each number is the median of the
repeats; the file keeps every repeat. Nothing here fails because it is slow.
"""

import argparse
import datetime
import os
import sys
import time
from pathlib import Path

from tools.makers import machine, result_files
from tools.makers.bench import compare_machines, pictures, report, rows, scaling

SECTIONS = rows.SECTIONS | {
    "four processes": {"all-reduce on four": rows.reduce(4)},
    "scaling": scaling.MEASURES,
}
USUAL = tuple(rows.SECTIONS)


def collect(lists, numbers):
    """Append the numbers of one repeat."""
    for name, value in numbers.items():
        if isinstance(value, dict):
            collect(lists.setdefault(name, {}), value)
        else:
            lists.setdefault(name, []).append(value)


def measure(measures, repeats):
    """Run each of them in each round, and return all numbers and the errors of those that failed."""
    found = {}
    failed = {}
    total = repeats * len(measures)
    began = time.monotonic()
    done = 0
    for repeat in range(1, repeats + 1):
        for name, run in measures.items():
            done += 1
            if name in failed:
                continue
            note = ""
            try:
                with rows.empty_folder() as folder:
                    collect(found, run(folder))
            except (Exception, SystemExit) as error:
                failed[name] = str(error)
                note = ": FAILED"
            left = (time.monotonic() - began) / done * (total - done) / 60
            bar = ("#" * (20 * done // total)).ljust(20)
            print(f"[{bar}] {left:4.1f} minutes left | repeat {repeat}: {name}{note}", flush=True)
    return found, failed


def options(documentation):
    """The command line that `make bench` and slow_links.py share."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=documentation, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds (%(default)s; our page has 5)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for pictures and results (out)")
    return parser


def parse(parser):
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    return arguments


def run(arguments, measures, kind="bench", as_rows=result_files.flat):
    """Measure, keep the file of results, and return what it says about the run, all numbers, and its path."""
    began = time.monotonic()
    load = os.getloadavg()[0]
    ticks_before, stolen_before = machine.cpu_ticks()
    found, failed = measure(measures, arguments.repeats)

    ticks, stolen = machine.cpu_ticks()
    about = {
        "date": datetime.date.today().isoformat(),
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "repeats": arguments.repeats,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "load_before": round(load, 2),
        "stolen": round((stolen - stolen_before) / max(ticks - ticks_before, 1), 4),
    }
    name = machine.file_name(kind, about)
    if failed:
        about["failed"] = failed
        name = name.replace(".jsonl", "-incomplete.jsonl")
    path = arguments.out / "results" / name
    result_files.write(path, about, as_rows(found))

    if failed:
        errors = "\n\n".join(f"{row}: {error}" for row, error in failed.items())
        sys.exit(f"{errors}\n\nerror: failed: {', '.join(failed)}; what was measured is kept in {path}")
    return about, found, path


def main():
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), help="sections to measure")
    parser.add_argument("--all", action="store_true", help="measure every section of the page")
    words = "measure nothing: write README.md and its pictures from this file"
    parser.add_argument("--readme", type=Path, help=words)
    arguments = parse(parser)
    if arguments.readme:
        report.write_page(arguments.readme)
        about, found = report.read(arguments.readme)
        pictures.draw(about, found, pictures.FOLDER)
        return

    if arguments.only:
        sections = arguments.only
    elif arguments.all:
        sections = SECTIONS
    else:
        sections = USUAL
    measures = {}
    for section in sections:
        for row, measured_by in SECTIONS[section].items():
            measures[f"{section}: {row}"] = measured_by

    about, found, path = run(arguments, measures)
    print(f"\n{report.plain(report.text(about, found, path))}\n")
    print(report.plain(compare_machines.beside_ours(about, found)))
    pictures.draw(about, found, arguments.out)
    print(f"\nPictures: {arguments.out}/*.svg. Kept: {path}")


if __name__ == "__main__":
    main()
