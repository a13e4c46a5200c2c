"""Cut the starters of the exercises out of their solutions: `make starters`.

In a solution, an answer stands between two lines, `# cut 03.2: average the gradients over all processes` and
`# end`. In the starter, one line stands in its place: it raises NotImplementedError with the same words. The
solution is the only source. A test runs this with --check.
"""

import argparse
import re
import sys

from launcher import ROOT

SOLUTIONS, STARTERS = ROOT / "solutions", ROOT / "lessons" / "exercises"
CUT = re.compile(r"^( *)# cut (\d\d\.\d+: .+)\n((?:.*\n)*?)\1# end\n", re.M)


def starter(text):
    """What students get of a solution."""
    cut = CUT.sub(lambda found: f'{found[1]}raise NotImplementedError("{found[2]}")\n', text)
    if "# cut" in cut or re.search(r"^ *# end$", cut, re.M):
        raise SystemExit("error: a cut without its end, or an end without its cut")
    return cut


def answers(text):
    """The lines of a solution that no student may find anywhere."""
    return [line.strip() for found in CUT.finditer(text) for line in found[3].splitlines()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    arguments = parser.parse_args()
    STARTERS.mkdir(exist_ok=True)
    for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*.py")):
        text, copy = starter(path.read_text()), STARTERS / path.name
        if not arguments.check:
            copy.write_text(text)
        elif not copy.exists() or copy.read_text() != text:
            sys.exit(f"error: {copy.relative_to(ROOT)} is not what its solution says: run make starters")


if __name__ == "__main__":
    main()
