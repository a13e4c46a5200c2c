"""Run a lesson and say how fast it trained: watched.py lessons/01_single_gpu.py --batch-size 1200 ...

The first epoch prepares, the last is looked at with a profiler, and those between are timed, one after
the other without what lies between them: with large batches an epoch has few steps, and alone says little.
"""

import sys
import time
from pathlib import Path

import turns

LESSON = Path(sys.argv[1]).resolve()
sys.argv = sys.argv[1:]
sys.path.insert(0, str(LESSON.parent))
import workload

progress, parser = workload.progress, workload.parser
epochs = int(sys.argv[sys.argv.index("--epochs") + 1])
device, timed, busy = workload.pick_device(), [0, 0.0], {}


def watched_progress(batches, epoch):
    if epoch == 2:
        turns.wait_for_turn()
    if epoch == epochs:
        with turns.Watch(device) as watch:
            yield from progress(batches, epoch)
        busy.update(watch.found)
        return
    begin = time.perf_counter()
    steps = 0
    for batch in progress(batches, epoch):
        yield batch
        steps += 1
    turns.synchronize(device)
    if epoch > 1:
        timed[0] += steps
        timed[1] += time.perf_counter() - begin


workload.progress = watched_progress
workload.parser = lambda file, description: parser(LESSON, description)
size = int(sys.argv[sys.argv.index("--batch-size") + 1])
try:
    exec(compile(LESSON.read_text(), str(LESSON), "exec"))
finally:
    if timed[1]:
        turns.say({"images/s": timed[0] * size / timed[1], "steps": timed[0], "busy": busy})
