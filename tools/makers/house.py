"""The folders of this repository as a picture for CONTRIBUTING: a folder imports only folders below it.

`make pictures` draws lessons/pictures/house.svg. A test compares it with the rules of test_imports.py.
"""

from tools.makers.mechanisms import Sheet

# Each folder: the floor, the left end and the width in tenths of an inch, and what is in it.
ROOMS = {
    "tests": (3, 0.5, 32, "of lessons, notebooks and tools"),
    "tools/makers": (2, 0.5, 32, "bench, gpu, site, pictures: for the makers of Rungs"),
    "notebooks": (1, 0.5, 15.5, "notebooks, show"),
    "tools": (1, 17, 15.5, "what make calls; testbed"),
    "lessons": (0, 0.5, 32, "scripts, workload, parts; pages"),
    "tests/exercises": (1, 36, 13.5, "checks, grader"),
    "solutions": (0, 36, 13.5, "of the exercises"),
}
ALONE = ("tests/exercises", "solutions")  # they import nothing of ours


def below(name):
    """The folders that stand below this one."""
    if name in ALONE:
        return []
    floor = ROOMS[name][0]
    return [other for other, room in ROOMS.items() if room[0] < floor and other not in ALONE]


def draw(path):
    sheet = Sheet(50, 33)
    height = 6
    gap = 1
    for name, (floor, left, width, inside) in ROOMS.items():
        bottom = 4 + floor * (height + gap)
        sheet.box(left, bottom, width, height)
        sheet.words(left + width / 2, bottom + 4, name, 10, weight="bold")
        sheet.words(left + width / 2, bottom + 1.8, inside, 8)
    sheet.words(16.5, 1.8, "a folder imports only folders below it;\nnotebooks also import tools/testbed")
    sheet.words(42.75, 1.8, "they import\nnothing of ours")
    sheet.save(path)
