"""Hold the lock on a file for a second: python hold_a_lock.py FILE. Prints a line once it has it."""

import fcntl
import sys
import time

with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if another has it
    file.write("another run")
    file.flush()
    print("locked")
    time.sleep(1)
