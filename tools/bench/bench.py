"""Measure this machine: `make bench`. Ends with a comparison with the machine of the page, and a dated file.

    python -m tools.bench.bench                          the usual sections, in about 10 minutes
    python -m tools.bench.bench --only all-reduce        some sections: --only "two processes" overlap
    python -m tools.bench.bench --all                    every section, in about 25 minutes
    python -m tools.bench.bench --readme tools/bench/results/FILE.json    write README.md from a file

All measurements take turns, so a noisy moment affects all of them alike. Each number is the median of the
repeats; the file keeps every repeat. Nothing here fails because it is slow.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from tools.bench import peers, report, rows, scaling

RESULTS = rows.HERE / "results"
SECTIONS = rows.SECTIONS | {
    "four processes": {"all-reduce on four": rows.reduce(4)},
    "scaling": scaling.MEASURES,
}
USUAL = tuple(rows.SECTIONS)


def machine():
    """The machine, without the names of people or hosts."""
    import torch

    lines = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.*)$", lines, re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "bf16": any(flag in lines for flag in ("avx512_bf16", "amx_bf16", " bf16")),
        "virtual": " hypervisor" in lines,
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions():
    names = ("torch", "torchvision", "numpy", "accelerate", "lightning-fabric")
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {"python": platform.python_version()} | found


def commit():
    """The commit of the programs, with a plus if some are changed; empty outside a repository."""

    def git(*words):
        run = subprocess.run(["git", *words], cwd=rows.HERE, capture_output=True, text=True)
        return run.stdout.strip() if run.returncode == 0 else ""

    # The results are not programs.
    changes = git("status", "--porcelain", "--untracked-files=no", ":/", ":!*.json", ":!*.md", ":!*.svg")
    return git("rev-parse", "--short=8", "HEAD") + "+" * bool(changes)


def cpu_ticks():
    """All ticks of all cores so far, and those that the host of this virtual machine gave to others."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    ticks = list(map(int, stat.read_text().splitlines()[0].split()[1:9]))
    return sum(ticks), ticks[7]


def collect(lists, numbers):
    """Append the numbers of one repeat."""
    for name, value in numbers.items():
        if isinstance(value, dict):
            collect(lists.setdefault(name, {}), value)
        else:
            lists.setdefault(name, []).append(value)


def measure(measures, repeats):
    """The numbers of all repeats, and the error of each row that failed.

    A failed row is not tried again, and the other rows go on.
    """
    found, failed, done, began = {}, {}, 0, time.monotonic()
    for repeat in range(1, repeats + 1):
        for name, run in measures.items():
            done += 1
            if name in failed:
                continue
            try:
                with rows.empty_folder() as folder:
                    collect(found, run(folder))
                note = ""
            except (Exception, SystemExit) as error:
                failed[name], note = str(error), ": failed"
            share = done / repeats / len(measures)
            left = (time.monotonic() - began) * (1 - share) / share / 60
            bar = "#" * round(20 * share)
            print(
                f"[{bar:20}] {share:4.0%}, {left:4.1f} minutes left | repeat {repeat}: {name}{note}",
                flush=True,
            )
    return found, failed


def name_of(result):
    """A file name that tells the machine and the day."""
    what = result["machine"]
    words = [what["cpu"], f"{what['cores']} cores", *what["gpus"][:1]]
    return "-".join([re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-"), result["date"]])


def options(documentation, results):
    """The command line that `make bench` and slow_links.py share."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=documentation, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds (%(default)s; our page has 5)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the pictures (out)")
    parser.add_argument("--results", type=Path, default=results, help="folder of the dated file")
    return parser


def parse(parser):
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    return arguments


def run(arguments, measures, in_rows=lambda found: found):
    """Measure, and return what was found and the path of the dated file. in_rows(found) is what it keeps."""
    began, load, (ticks, stolen) = time.monotonic(), os.getloadavg()[0], cpu_ticks()
    result = {"date": datetime.date.today().isoformat(), "commit": commit()}
    result |= {"machine": machine(), "versions": versions()}
    found, failed = measure(measures, arguments.repeats)
    ticks, stolen = cpu_ticks()[0] - ticks, cpu_ticks()[1] - stolen
    result |= {"repeats": arguments.repeats, "minutes": round((time.monotonic() - began) / 60, 1)}
    result |= {"load_before": round(load, 2), "stolen": round(stolen / max(ticks, 1), 4)}
    result |= {"rows": in_rows(found)}
    folder = arguments.out if failed else arguments.results
    path = folder / f"{name_of(result)}{'-incomplete' if failed else ''}.json"
    for each in (arguments.out, folder):
        each.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | ({"failed": failed} if failed else {}), indent=1) + "\n")
    if failed:
        words = "\n\n".join(f"{row}: {error}" for row, error in failed.items())
        sys.exit(f"{words}\n\nerror: failed: {', '.join(failed)}; what was measured is kept in {path}")
    return result, path


def main():
    parser = options(__doc__, RESULTS)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), help="sections to measure")
    parser.add_argument("--all", action="store_true", help="measure every section of the page")
    words = "also measure other tutorials: the folder with their repositories"
    parser.add_argument("--peers", type=Path, help=words)
    words = "measure nothing: write README.md and its pictures from this file"
    parser.add_argument("--readme", type=Path, help=words)
    arguments = parse(parser)
    if arguments.readme:
        report.write_page(arguments.readme)
        return
    names = arguments.only or (SECTIONS if arguments.all else USUAL)
    measures = {f"{section}: {row}": run for section in names for row, run in SECTIONS[section].items()}
    if arguments.peers:
        measures |= {f"peers: {row}": run for row, run in peers.measures(arguments.peers).items()}
    result, path = run(arguments, measures)
    print(f"\n{report.plain(report.section(result, path))}\n")
    print(report.plain(report.beside_ours(result)))
    report.draw(result, arguments.out)
    print(f"\nPictures: {arguments.out}/*.svg. Kept: {path}")


if __name__ == "__main__":
    main()
