"""What can go wrong on many machines, which message you see, and after how long: the list of lesson 06b.

`make diffs` writes it into lessons/pages/06b.md. Each row names the test in test_hosts.py that produces its
fault with lesson 06b. The test asks for the row's text in the output, within the row's limit.
"""

import tomllib
from pathlib import Path
from types import SimpleNamespace

# What the tests set; the limits below follow from it.
TIME_LIMIT = 4
CONF = {
    "join_timeout": 60,
    "last_call_timeout": 1,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,
    "read_timeout": 5,
}
JOIN_TIMEOUT = 6  # for the host that never comes
WAITS = {
    "TIME_LIMIT": TIME_LIMIT,
    "LATER": 5,  # seconds that a process waits before it prints that another one is gone: print_first_error
    "STOPPING": 30,  # seconds that a launcher gives its processes to end
    "STARTING": 45,  # seconds in which a busy machine starts a few processes, or notices that one has ended
    "JOIN_TIMEOUT": JOIN_TIMEOUT,
    "LAST_CALL": CONF["last_call_timeout"],
    "DEAD": CONF["keep_alive_interval"] * CONF["keep_alive_max_attempt"],
    "READ": CONF["read_timeout"],
}


def read():
    rows = {}
    for name, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items():
        for field, value in row.items():
            if isinstance(value, str):
                row[field] = value.format(**WAITS)
        row["limit"] = sum(WAITS[wait] for wait in row["limit"])
        rows[name] = SimpleNamespace(**row)
    return rows


ROWS = read()


def listed():
    """No table: a phone shows only two of four columns with this much text."""
    lines = []
    for row in ROWS.values():
        if row.fault:
            lines += ["", f"**{row.fault}.**", ""]
        place = ", ".join(filter(None, (row.where, row.after)))
        lines.append(f"- {place[0].upper()}{place[1:]}: `{row.text.strip('| ')}`. {row.advice}")
    return "\n".join(lines[1:]) + "\n"
