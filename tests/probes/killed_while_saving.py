"""A lesson (the first word) whose rank 0 is killed in a method of DCP's writer, and leaves half a file.

The words: the lesson, the method, a part of the checkpoint's name, the file that is left half.
"""

import os
import signal
import sys

from torch.distributed.checkpoint import FileSystemWriter

from meshes import become

_, lesson, method, checkpoint, file = sys.argv[:5]
sys.argv[1:5] = []
as_it_was = getattr(FileSystemWriter, method)


def die(self, *arguments, **options):
    if checkpoint in str(self.path) and os.environ["RANK"] == "0":
        with open(f"{self.path}/{file}", "wb") as half:
            half.write(b"PK" * 99)
        os.kill(os.getpid(), signal.SIGKILL)
    return as_it_was(self, *arguments, **options)


setattr(FileSystemWriter, method, die)
become(lesson)
