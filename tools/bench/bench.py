"""Measure this machine: `make bench`. Ends with tables, OUT/bench.svg and a dated file in results/.

    python -m tools.bench.bench                                           all rows
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
import sys
import time
from importlib import metadata
from pathlib import Path

from tools.bench import report, rows

RESULTS = rows.HERE / "results"


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
    packages = {name: metadata.version(name) for name in ("torch", "torchvision", "numpy")}
    return {"python": platform.python_version()} | packages


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
    found, failed = {}, {}
    for repeat in range(1, repeats + 1):
        for number, (name, run) in enumerate(measures.items(), 1):
            if name in failed:
                continue
            start = time.monotonic()
            try:
                with rows.empty_folder() as folder:
                    numbers = run(folder)
                collect(found, numbers)
                note = "" if numbers else " (not on this machine)"
            except (Exception, SystemExit) as error:
                failed[name], note = str(error), " failed"
            seconds = time.monotonic() - start
            counts = f"repeat {repeat} of {repeats} | {number:2} of {len(measures)}"
            print(f"{counts} | {name:32} {seconds:5.1f} s{note}", flush=True)
    return found, failed


def name_of(result):
    """A file name that tells the machine and the day."""
    what = result["machine"]
    words = [what["cpu"], f"{what['cores']} cores", *what["gpus"][:1]]
    return "-".join([re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-"), result["date"]])


def parse(documentation, results, **options):
    """The command line that `make bench`, `make scaling` and slow_links.py share."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=documentation, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (out)")
    parser.add_argument("--results", type=Path, default=results, help="folder of the dated file")
    words = "measure nothing: write README.md from this file"
    parser.add_argument("--readme", "--pages", type=Path, help=words)
    for name, option in options.items():
        parser.add_argument(f"--{name}", **option)
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    return arguments


def run(arguments, measures, section, draw=None, in_rows=lambda found: found, name="bench"):
    """Measure, keep a dated file, and say and draw what it holds. in_rows(found) is what the file keeps."""
    began, load = time.monotonic(), os.getloadavg()[1]
    result = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
    found, failed = measure(measures, arguments.repeats)
    result |= {"repeats": arguments.repeats, "minutes": round((time.monotonic() - began) / 60, 1)}
    # Other work on the machine: of what sends little, the seconds depend on the cores.
    result |= {"load": [round(load, 1), round(os.getloadavg()[1], 1)], "rows": in_rows(found)}
    ending = f"-{name}-incomplete" if failed else ""
    path = (arguments.out if failed else arguments.results) / f"{name_of(result)}{ending}.json"
    for folder in (arguments.out, arguments.results):
        folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | ({"failed": failed} if failed else {}), indent=1) + "\n")
    with contextlib.suppress(*(LookupError, ValueError) if failed else ()):
        print(report.plain(section(result, path)))
    if failed:
        words = "\n\n".join(f"{row}: {error}" for row, error in failed.items())
        sys.exit(f"{words}\n\nerror: failed: {', '.join(failed)}; what was measured is kept in {path}")
    if draw:
        draw(result, arguments.out / f"{name}.svg")
        print(f"\nThe same as a picture: {arguments.out / name}.svg")
    print(f"\nKept: {path}")


def main():
    arguments = parse(__doc__, RESULTS)
    if arguments.readme:
        report.write_page("bench", arguments.readme, report.section, report.draw)
    else:
        run(arguments, rows.MEASURES, report.section, report.draw)


if __name__ == "__main__":
    main()
