"""A trainer whose DataLoader has workers: torch listens then for the end of every child of this process."""

import signal
import subprocess
import time

import workload

signal.signal(signal.SIGCHLD, lambda number, frame: None)
workload.listen_for_the_end(1)
subprocess.run(["true"])  # as a compiler is started
time.sleep(3)
print("still here")
