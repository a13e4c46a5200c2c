"""Measure this machine: `make bench`. Ends with tables, OUT/bench.svg and a dated file in results/.

    python tools/bench/bench.py                              all rows
    python tools/bench/bench.py --readme tools/bench/results/FILE.json    write README.md from a file

All measurements take turns, so a noisy moment affects all of them alike. Each number is the median of the
repeats; the file keeps every repeat. Nothing here fails because it is slow.
"""

import argparse
import datetime
import json
import os
import platform
import re
import sys
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import report
import rows

RESULTS = rows.HERE / "results"


def machine():
    """The machine, without the names of people or hosts."""
    import torch

    lines = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.*)$", lines, re.M)
    count, memory = os.cpu_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": count,
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
    """The numbers of all repeats, the seconds they took, and the error of each row that failed.

    A failed row is not tried again, and the other rows go on.
    """
    found, failed, began = {}, {}, time.monotonic()
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
            print(
                f"repeat {repeat} of {repeats} | {number:2} of {len(measures)} | "
                f"{name:32} {seconds:5.1f} s{note}",
                flush=True,
            )
    return found, time.monotonic() - began, failed


def name_of(result):
    """A file name that tells the machine and the day."""
    what = result["machine"]
    words = [what["cpu"], f"{what['cores']} cores", *what["gpus"][:1]]
    return "-".join([re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-"), result["date"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (out)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--readme", type=Path, help="measure nothing: write README.md from this file")
    arguments = parser.parse_args()
    if arguments.readme:
        report.write_page(arguments.readme)
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    measures, what = dict(rows.MEASURES), machine()
    found, seconds, failed = measure(measures, arguments.repeats)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": what,
        "versions": versions(),
        "repeats": arguments.repeats,
        "minutes": round(seconds / 60, 1),
        "rows": found,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if failed:
        path = arguments.out / f"{name_of(result)}-incomplete.json"
        path.write_text(json.dumps(result | {"failed": failed}, indent=1) + "\n")
        print(report.plain(report.section(result, path)))
        words = "\n\n".join(f"{name}: {error}" for name, error in failed.items())
        sys.exit(f"{words}\n\nerror: failed: {', '.join(failed)}; what was measured is kept in {path}")
    path = arguments.results / f"{name_of(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    report.draw(result, arguments.out / "bench.svg")
    print(report.plain(report.section(result, path)))
    print(f"\nThe same as a picture and as data: {arguments.out / 'bench.svg'}, {path}")


if __name__ == "__main__":
    main()
