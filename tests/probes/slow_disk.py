"""Run the script that the words name on a disk that takes SLOW seconds to sync its second file."""

import os
import runpy
import sys
import time

fsync, written = os.fsync, []


def slow(file):
    written.append(file)
    if len(written) == 2:
        time.sleep(float(os.environ["SLOW"]))
    fsync(file)


os.fsync = slow
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
