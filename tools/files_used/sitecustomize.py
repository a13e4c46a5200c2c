"""Python reads this when it starts, in all processes of a notebook: tools/notebooks.py arranges it so. Each
file of this repository that a process opens or starts is named on a line of the file USED."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = tuple(
    os.path.join(ROOT, name, "") for name in ("lessons", "notebooks", "solutions", "tests", "tools")
)
seen = set()


def note(event, arguments):
    if event == "open":
        names = arguments[:1]
    elif event == "subprocess.Popen":
        names = arguments[1]  # a shell, too, would open its script unseen
    else:
        return
    for name in [names] if isinstance(names, str | bytes) else names:
        if isinstance(name, str | bytes | os.PathLike):
            try:
                path = os.path.abspath(os.fsdecode(name))
            except OSError:  # the folder that it is in has been removed
                continue
            if path.startswith(FOLDERS) and path not in seen and os.path.isfile(path):
                seen.add(path)
                file = os.open(os.environ["USED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(file, f"{path}\n".encode())
                os.close(file)


if "USED" in os.environ:
    sys.addaudithook(note)
